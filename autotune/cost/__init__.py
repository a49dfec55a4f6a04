"""The analytic cost model: memory and step time of many candidates at once, nothing run.

`Plans` holds the candidates in columns, `predict` gives a `Prediction` of them.
"""

from autotune.cost.constants import Constants, load_constants
from autotune.cost.plans import Plans, Recompute, Tier
from autotune.cost.predict import Prediction, predict

__all__ = ["Constants", "Plans", "Prediction", "Recompute", "Tier", "load_constants", "predict"]
