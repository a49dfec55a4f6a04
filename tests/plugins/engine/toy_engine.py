"""An engine that stands on DeepSpeed, has a rule of its own, and is handed out by its own name."""

from autotune.devices.hardware import Environment
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.plugin import DeepSpeed
from autotune.export.dialects.deepspeed import DeepSpeedFiles
from autotune.job.job import Job
from autotune.space.candidate import Candidate
from autotune.space.rule import Violation

UNSHARDED = Violation(
    rule="toy.sharded", message="zero.stage=0 shards nothing", fix="set zero.stage to 1 or more"
)


class ShardedEngine(DeepSpeedEngine):
    name = "toy-sharded"

    def judge(self, candidate: Candidate) -> list[Violation]:
        own = [UNSHARDED] if candidate["zero.stage"] == 0 else []
        return [*own, *super().judge(candidate)]


class Sharded(DeepSpeed):
    name = "toy-sharded"
    dialect = "toy-sharded-files"

    def bind(self, job: Job, environment: Environment) -> ShardedEngine:
        return ShardedEngine(job, environment)


class ShardedFiles(DeepSpeedFiles):
    engines = ("toy-sharded",)
