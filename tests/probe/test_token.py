"""The secret of the nodes: which are refused, with a reason, and where one may come from."""

import base64
import os
import random
import uuid
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
        # What people make up or copy.
        *("tobeornottobethatisthequestion", "jacksonmichaelthriller", "Liverpool1892champ"),
        *("ilovedeepspeed123", "MyV3ryS3cur3P@ss!", "h4ck3rm4n!h4ck3r", "onetwothreefourfive"),
        *("00:1a:2b:3c:4d:5e", "fe80::1ff:fe23:4567:890a", "/home/user/.ssh/id_rsa"),
        *("https://example.com/path", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
        *("098f6bcd4621d373cade4e832627b4f6", "5baa61e4c9b93f3f0682250b6cf8331b7ee68fd8"),
        *("21232f297a57a5a743894a0e4a801fc3", "e10adc3949ba59abbe56e057f20f883e"),
        *("eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9", "NVIDIA-H100-80GB-HBM3"),
        *("REPLACE_ME_WITH_A_TOKEN", "v1.2.3-alpha.4+build.5", "8badf00dcafed00d"),
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
        assert weakness(str(uuid.UUID(bytes=drawn, version=4))) == ""
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


ALSO_GUESSED = (
    *("correct horse battery staple", "thequickbrownfoxjumps", "january2026february"),
    *("1qaz2wsx3edc4rfv", "q1w2e3r4t5y6u7i8", "poiuytrewqlkjhgf", "mnbvcxzlkjhgfdsa"),
    *("dvorakpyfgcrlaoeui", "!@#$%^&*()_+{}|:", "asdfghjkl;'zxcvb", "acegikmoqsuwy024"),
    *("1a2b3c4d5e6f7g8h", "a1b2c3d4e5f6g7h8", "f0e1d2c3b4a59687", "0246813579acebdf"),
    *("0a1b2c3d4e5f6a7b8c9d", "drowssapdrowssapx", "hunter2hunter2hunter3"),
    *("password12345678901234", "password1234567890abcdefgh", "2026-11-24T12:00:00"),
    *(
        "20261124093000utc",
        "192.168.100.200:29500",
        "localhost:29500-node0",
        "27182818284590452353",
    ),
    *("openssl rand -hex 16", "$AUTOTUNE_TOKEN-value", "<your-token-here>!!"),
    *("cGFzc3dvcmRwYXNzd29yZA==", "YWJjZGVmZ2hpamtsbW5vcA==", "70617373776f726470617373776f7264"),
    *("d41d8cd98f00b204e9800998ecf8427e", "5f4dcc3b5aa765d61d8327deb882cf99"),
    *("550e8400-e29b-41d4-a716-446655440000", "AKIAIOSFODNN7EXAMPLE", "deadbeefcafebabe"),
)


@pytest.mark.parametrize("token", ALSO_GUESSED)
def test_patterns_books_and_what_one_copies_are_refused(token: str) -> None:
    assert weakness(token)
    assert token not in weakness(token)


def test_long_random_digits_and_random_identities_are_taken() -> None:
    draw = random.Random(11)
    assert weakness("49308625716284059317462850937162") == ""
    for _ in range(300):
        assert weakness(str(uuid.UUID(int=draw.getrandbits(128), version=4))) == ""
