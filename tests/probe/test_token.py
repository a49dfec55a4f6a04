"""The secret of the nodes: which are refused, with a reason, and where one may come from."""

import base64
import os
import random
from pathlib import Path

import pytest

from autotune.base.errors import JobError
from autotune.probe.token import TOKEN_ENV, read_token, weakness

GOOD = "e3b7a91c5d20f846b1a7c2"


@pytest.mark.parametrize(
    "token",
    [
        *("", " ", "\n", "short", "a1b2c3d4e5f6g7h", "a" * 16, "a" * 500, "ab" * 20, "abcd" * 8),
        *("password", "passwordpassword", "PasswordPassword1!", "p@ssw0rdP@ssw0rd", "secret" * 4),
        *(
            "my-secret-token-2026",
            "changeme-changeme-1",
            "autotune-cluster-1",
            "letmein letmein !",
        ),
        *("1234567890123456", "0123456789abcdef", "abcdefghijklmnopq", "zyxwvutsrqponmlkj"),
        *("qwertyuiopasdfgh", "qwertyuiop123456", "AAAAAAAAaaaaaaaaB", "111111112222222233333333"),
        *(
            "k3JxQ9rTk3JxQ9rT",
            "k3JxQ9rTk3JxQ9rTk",
            "e3b7a91c5d\x00f846b1a7c2",
            "x y x y x y x y x y",
        ),
        "insert-your-token-here",
    ],
)
def test_what_can_be_guessed_is_refused_and_not_shown(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = weakness(token)
    assert why
    assert token.strip() == "" or token not in why
    monkeypatch.setattr(os, "environ", {TOKEN_ENV: token})
    with pytest.raises(JobError, match=TOKEN_ENV) as refused:
        read_token(None)
    assert "openssl rand -hex 16" in refused.value.hint


def test_what_a_generator_makes_is_taken() -> None:
    draw = random.Random(7)
    for _ in range(500):
        drawn = draw.randbytes(16)
        assert weakness(drawn.hex()) == ""
        assert weakness(base64.b64encode(drawn).decode()) == ""
    assert weakness("plum-orbit-velvet-canyon-42") == ""


def written(folder: Path, text: bytes, mode: int = 0o600) -> Path:
    file = folder / "token"
    file.write_bytes(text)
    file.chmod(mode)
    return file


def test_a_file_of_one_s_own_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_ENV, "of the environment, which a file goes before")
    assert read_token(written(tmp_path, GOOD.encode() + b"\n")) == GOOD
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "token")
    assert read_token(link) == GOOD


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o666])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(JobError, match="others may read or write it") as refused:
        read_token(written(tmp_path, GOOD.encode(), mode))
    assert "chmod 600" in refused.value.hint


def test_what_is_no_file_with_a_secret_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for file, said in (
        (tmp_path / "pipe", "no regular file"),
        (tmp_path, "no regular file"),
        (tmp_path / "nowhere", "No such file"),
        (Path("/dev/zero"), "no regular file"),
        (written(tmp_path, b"\xff" * 40), "is no text"),
    ):
        with pytest.raises(JobError, match=said):
            read_token(file)
    with pytest.raises(JobError, match="at most 4096 bytes"):
        read_token(written(tmp_path, GOOD.encode() * 400))
    with pytest.raises(JobError, match="not set, or empty"):
        read_token(written(tmp_path, b"\n"))
