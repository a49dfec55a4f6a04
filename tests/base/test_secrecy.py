import json
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.base.data import data_folder, shipped_spaces
from autotune.base.secrecy import (
    HIDDEN,
    holds_secret,
    is_secret,
    scrubbed,
    scrubbed_document,
    scrubbed_text,
)
from autotune.job.model import presets
from tests.cases import Cases

cases = Cases(__file__)

SECRET = "Zq7xV2mK9pLw"
"""Nothing in it but that it is nobody's word."""

NAMES = str.split(
    """
    password passwd pwd passphrase secret token
    credential credentials apiKey api-key api.key API_KEY apikey apiKeys api_keys
    private_key privateKey access_key client_secret clientSecret DB_PASS user_pass db_password
    hf_token hfToken HF_TOKEN HUGGING_FACE_HUB_TOKEN use_auth_token x-api-key
    refresh_token WANDB_API_KEY wandb_key AccountKey aws_secret_access_key basic_auth MY_TOKEN
    """
)

NO_NAMES = str.split(
    """
    tokens max_tokens bos_token eos_token_id pad_token unk_token image_token
    token_embedding token_type special_tokens num_tokens tokens_per_second pass_through
    forward_pass backward_pass n_passes passes compass bypass author authors keys keyboard
    monkey key key_value key_states num_key_value_heads sort_key tokenizer tokenizer_class
    loss_chunk_tokens random_ltd_layer_token pin_memory signature_columns secretary
    cookiecutter session_timeout_s stage project design assign asset hidden_act
    ext_pw_out_channels forward_hook user_token_id hf_token_type token_dropout
    url base_url connection private_layers api_version
    """
)


@pytest.mark.parametrize("name", NAMES)
def test_names_of_secrets(name):
    assert is_secret(name)
    assert scrubbed({"a": [{name: SECRET}]}) == {"a": [{name: HIDDEN}]}


@pytest.mark.parametrize("name", NO_NAMES)
def test_names_of_settings(name):
    assert not is_secret(name)


VALUES = [
    f"hf_{SECRET}{SECRET}",
    f"sk-proj-{SECRET}{SECRET}",
    f"sk-{SECRET}{SECRET}",
    f"ghp_{SECRET}{SECRET}{SECRET}",
    f"gho_{SECRET}{SECRET}{SECRET}",
    f"github_pat_{SECRET}_{SECRET}{SECRET}",
    f"glpat-{SECRET}{SECRET}",
    f"xoxb-123456789012-{SECRET}",
    "AKIAIOSFODNN7EXAMPLE",
    "ASIAIOSFODNN7EXAMPLE",
    f"AIza{SECRET}{SECRET}{SECRET}",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    f"npm_{SECRET}{SECRET}{SECRET}",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIBOgIBAAJBAK\n-----END RSA PRIVATE KEY-----",
    "postgres://user:hunter2@db:5432/name",
    "redis://:hunter2@cache:6379/0",
    f"https://{SECRET}@github.com/x/y",
    "ftp://me:hun@ter2@host/x",
    "https://host/path?x=1&token=hunter2",
    "Server=h;Uid=u;Pwd=hunter2;",
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=hunter2==",
    "python train.py --api-key hunter2 --lr 3",
    "python train.py --token=hunter2",
    "export DB_PASSWORD=hunter2",
    "DB_PASS=hunter2",
    "docker run -e HF_TOKEN=hunter2 image",
    '{"password": "hunter2"}',
    "{'pwd': 'hunter2', 'k': 1}",
    '{"api_keys": [\n "hunter2",\n "hunter2"]}',
    '{\\"password\\": \\"hunter2\\"}',
    "Config(password=b'hunter2', port=3)",
    "hf_token: hunter2",
    "hf_token:\n  hunter2\nlr: 1",
    "api_keys:\n- hunter2",
    "db_password: |\n  hunter2\n",
    "a:\n  db_password: >-\n    ab\n\n      hunter2 hunter2\n    hunter2\n  b: 1",
    "password=/hunter2/x",
    '{"aws_secret_access_key": "/hunter2+x"}',
    "/data/hf_Zq7xV2mK9pLwZq7xV2mK9pLw/x.bin",
]


@pytest.mark.parametrize("value", VALUES)
def test_values_that_show_what_they_are(value):
    for text in (scrubbed_text(value), scrubbed({"a": [[value]]})["a"][0][0]):
        assert HIDDEN in text
        assert not any(part in text for part in (SECRET, "hunter2", "ter2", "EXAMPLE", "MII"))
    assert not any(part in str(scrubbed({value: 1})) for part in (SECRET, "hunter2", "ter2"))
    assert scrubbed_text(scrubbed_text(value)) == scrubbed_text(value)


PLAIN = [
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "/root/.cache/torch_extensions/py312_cpu/3f2a1c9d8e7b/cpu_adam/build.ninja",
    "/tmp/torchinductor_root/o5/co5jx2qk3vl7bq6zq4w5d7m2n3p4r5s6t7u2v3w4x5y6z7a2b.py",
    "meta-llama/Llama-3.1-70B-Instruct",
    "Qwen2.5-Coder-32B-Instruct-GPTQ-Int4",
    "deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3",
    "stage3_param_persistence_threshold=100000, zero_hpz_partition_size=8",
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 79.15 GiB total)",
    "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
    "GPU-8f1b2c3d-1234-5678-9abc-def012345678",
    "NVIDIA H100 80GB HBM3, driver 550.54.15",
    "2026-11-24T03:44:44.123456+00:00",
    "KeyError: 'model.layers.0.self_attn.q_proj.weight'",
    "unexpected key: lm_head.weight",
    "https://github.com/deepspeedai/DeepSpeed/commit/0123456789abcdef0123456789abcdef01234567",
    "https://medium.com/@somebody",
    "git+ssh://git@github.com/x/y",
    "python:3.12@sha256:9f86d081884c7d659a2feaa0c55ad015",
    "<|begin_of_text|>{% for message in messages %}{{ message['content'] }}{% endfor %}",
    "PWD=/home/somebody/project",
    "tiny-s128-b8-w2-3f2a1c",
    "basic configuration of the bearer",
    "abcdefghijklmnopqrstuvwxyz",
    "-3.5e-05",
    "/home/me/.triton/cache/ZQ7XV2MK9PLWZQ7XV2MK9PLWZQ7XV2MK9PLWZQ7XV2MK9PLWZQ7A/k.json",
    "export AUTOTUNE_TOKEN=...",
    "--what-if KEY=VALUE",
    "key=3, sort_key=loss",
    "tokenizer=AutoTokenizer, max_tokens=4096, eos_token_id: 2",
    "https://docs.github.com/actions/hooks",
    "https://user.example/@name",
    "layers:\n  token_dropout:\n    rate: 0.1\n",
    "a" * 200,
]


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_no_secret_stays_as_it_is(text):
    assert scrubbed_text(text) == text


def test_what_is_shipped_holds_nothing_that_is_withheld():
    for name in presets():
        file = resources.files("autotune.job") / "presets" / f"{name}.json"
        config = json.loads(file.read_text(encoding="utf-8"))
        assert scrubbed(config) == config
    for name in shipped_spaces():
        text = (data_folder("search_spaces") / f"{name}.yaml").read_text(encoding="utf-8")
        assert scrubbed_text(text) == text


def test_secrets_are_withheld_at_any_depth_and_settings_are_not():
    section = {
        "comet": {"api_key": "abc", "project": "p"},
        "layer_tokens": 3,
        "token": ["a"],
        "credentials": {"user": "me", "id": 7},
        "password": 12,
        "session": {"steps": 3},
        "bos_token": "<s>",
        "_commit_hash": "0123456789abcdef0123456789abcdef01234567",
        "arguments": ["--lr", "0.1", "--token", "abc", "--flag"],
    }
    before = json.dumps(section)
    assert scrubbed(section) == {
        "comet": {"api_key": HIDDEN, "project": "p"},
        "layer_tokens": 3,
        "token": HIDDEN,
        "credentials": HIDDEN,
        "password": 12,
        "session": {"steps": 3},
        "bos_token": "<s>",
        "_commit_hash": "0123456789abcdef0123456789abcdef01234567",
        "arguments": ["--lr", "0.1", "--token", HIDDEN, "--flag"],
    }
    assert json.dumps(section) == before
    assert not holds_secret("use_auth", True)


def test_a_text_keeps_all_but_its_secrets():
    text = (
        '{"comet": {"api_key": "a\\"b",\n "project" : "key"}, "tokens": 3,\n "hf_token": ["b"]}\n'
    )
    assert scrubbed_text(text) == (
        '{"comet": {"api_key": "***",\n "project" : "key"}, "tokens": 3,\n "hf_token": "***"}\n'
    )


def test_a_secret_of_the_environment_is_known_wherever_it_stands(monkeypatch):
    monkeypatch.setenv("SOME_API_TOKEN", "plain-words-here")
    assert scrubbed_text("refused: plain-words-here") == f"refused: {HIDDEN}"


def test_a_document_without_secrets_stays_byte_for_byte():
    text = '{"b":1,\n"a": 2}'
    assert scrubbed_document("ds_config.json", text) == text
    hidden = scrubbed_document("ds_config.json", '{"pwd": "hunter2"}')
    assert json.loads(hidden) == {"pwd": HIDDEN}


@pytest.mark.parametrize("value", ["12345678", "2718281828e1"])
def test_a_long_number_may_be_a_secret(value):
    assert scrubbed({"password": value, "token": "3"}) == {"password": HIDDEN, "token": "3"}
    assert scrubbed_text(f'"password": "{value}"') == f'"password": "{HIDDEN}"'


@given(st.recursive(st.none() | st.integers() | st.text(), lambda of: st.lists(of)))
def test_scrubbing_twice_changes_nothing(data):
    assert scrubbed(scrubbed(data)) == scrubbed(data)


@pytest.mark.parametrize(
    "unit",
    [
        *("a:", "a=", "-eyJ", "://", "https://", 'a="', "a=[", "u:p@", "--a ", "sk-", "hf_"),
        *("key={", "password=[", "password:\n ", "<token>", "/hook/", "name: key, ", "a.", "a1-"),
    ],
)
@pytest.mark.timeout(120)
def test_no_text_takes_the_square_of_its_length(unit):
    """Where it did, this took hours."""
    text = unit * (100_000 // len(unit))
    assert len(scrubbed_text(text)) <= len(text) + len(HIDDEN)


SECTIONS = cases.data["SECTIONS"]


@pytest.mark.parametrize("data", SECTIONS, ids=json.dumps)
def test_secrets_in_what_is_built_otherwise(data):
    assert "hunter2" not in json.dumps(scrubbed(data))
    assert "hunter2" not in json.dumps(scrubbed({"a": [[data]]}))


def test_labels_of_a_classifier_are_no_names_of_secrets():
    config = {"label2id": {"B-secret": 0, "password": 1}, "id2label": {"0": "B-secret"}}
    assert scrubbed(config) == config
