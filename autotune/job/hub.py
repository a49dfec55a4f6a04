"""Models by the name of their repository on Hugging Face, read from the local cache alone.

Nothing is fetched: a search may run where there is no network, and who may read a gated
repository is between its owner and the user. Where the cache has none, a preset may know its
shape.
"""

import os
import re
from pathlib import Path

from autotune.base.errors import JobError
from autotune.job.published import preset_of_repository, unsaid_layers

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

_ADDRESS = re.compile(
    r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/"
    r"(?P<name>[\w.-]+(?:/(?!(?:tree|blob|resolve)\b)[\w.-]+)?)(?:[/?#].*)?",
    re.IGNORECASE,
)


def without_address(text: str) -> str:
    """The name of the repository whose page an address shows; any other text as it is."""
    page = _ADDRESS.fullmatch(text.strip())
    return text if page is None else page["name"]


def is_repository(text: str) -> bool:
    """Whether a model is named as a repository is, and no file or folder has the name."""
    is_name = _REPOSITORY.fullmatch(text) is not None and not text.endswith(".json")
    return is_name and not os.path.exists(text)


def config_of(repository: str) -> Path | str:
    """The config.json of a repository in the local cache, or the name of the preset like it.

    Raises:
        JobError: Neither is there, and the hint is the command that fetches it; or no repository
            has such a name.
    """
    path: object = None
    try:
        from huggingface_hub import try_to_load_from_cache  # heavy, and only for such names

        path = try_to_load_from_cache(repository, "config.json")
    except ImportError:  # whoever lacks it has no such cache either
        pass
    except ValueError as error:  # HFValidationError: no repository can have the name
        raise JobError(
            f"model: {repository}: there is no such folder, and it is no name of a repository: "
            f"{error}",
            "name a folder, a config.json, a preset (`autotune models`) or OWNER/NAME",
        ) from error
    if isinstance(path, str):
        return Path(path)
    if preset := preset_of_repository(repository):
        return preset
    unsaid = unsaid_layers(repository)
    alike = preset_of_repository(repository.rpartition("/")[2])
    raise JobError(
        f"model: {repository}: there is no such folder, Hugging Face's local cache does not hold "
        "the repository, and no preset has its shape",
        (f"the preset {alike} has another owner's model of that name; or " if alike else "")
        + f"fetch its config.json, without weights: hf download {repository} config.json"
        + (f"; its {unsaid} cannot be predicted, only traced and trained" if unsaid else ""),
    )
