from autotune.base.secrecy import holds_secret, is_secret, masked, masked_text


def test_names_of_secrets():
    assert all(map(is_secret, ("api_key", "WANDB_API_KEY", "auth", "hf_token", "db_password")))
    assert not any(map(is_secret, ("project", "keys", "stage", "keyboard")))


def test_secrets_are_masked_at_any_depth_and_settings_are_not():
    section = {"comet": {"api_key": "abc", "project": "p"}, "layer_tokens": 3, "token": ["a"]}
    assert masked(section) == {
        "comet": {"api_key": "***", "project": "p"},
        "layer_tokens": 3,
        "token": "***",
    }
    assert section["comet"]["api_key"] == "abc"
    assert not holds_secret("use_auth", True)


def test_a_text_keeps_all_but_its_secrets():
    text = '{"comet": {"api_key": "a\\"b",\n "project" : "key"}, "tokens": 3,\n "auth": ["b"]}\n'
    assert masked_text(text) == (
        '{"comet": {"api_key": "***",\n "project" : "key"}, "tokens": 3,\n "auth": "***"}\n'
    )
