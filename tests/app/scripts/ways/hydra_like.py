"""Groups of a folder of settings put together by name, with overrides from the command line."""

import os
import sys
from pathlib import Path

import deepspeed
import tiny
import yaml

HERE = Path(__file__).resolve().parent
words = dict(word.split("=", 1) for word in sys.argv[1:])
settings = yaml.safe_load((HERE / "conf" / f"{words.pop('name', 'train')}.yaml").read_text())
for group, choice in settings.pop("defaults").items():
    text = (HERE / "conf" / group / f"{choice}.yaml").read_text()
    settings[group] = yaml.safe_load(text)
for path, value in words.items():
    *sections, name = path.split(".")
    section = settings
    for each in sections:
        section = section[each]
    section[name] = yaml.safe_load(value)
network = tiny.Network()
engine, *_ = deepspeed.initialize(
    model=network, model_parameters=network.parameters(), config=settings["ds"]
)
os.chdir("/")
tiny.train(engine)
