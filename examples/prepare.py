"""Write a small Llama with random weights, its tokenizer, and questions with their answers.

`python prepare.py FOLDER`, in an environment with transformers. Nothing is downloaded: the text
is that of Python's own help.
"""

import json
import pydoc_data.topics
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TOPICS = pydoc_data.topics.topics
VOCAB = 1024
LENGTH = 128


def make_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TOPICS.values(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<pad>",
        model_max_length=LENGTH,
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def make_rows() -> list[dict[str, str]]:
    return [
        {"instruction": f"What is said of {name}?", "input": "", "output": paragraph}
        for name, text in TOPICS.items()
        for paragraph in text.split("\n\n")
        if len(paragraph) > 200
    ]


def main(folder: Path) -> None:
    tokenizer = make_tokenizer()
    make_model(tokenizer).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rows = "".join(json.dumps(row) + "\n" for row in make_rows())
    (folder / "topics.jsonl").write_text(rows, encoding="utf-8")
    known = {"topics": {"file_name": "topics.jsonl"}}  # LLaMA-Factory's list of data sets
    (folder / "dataset_info.json").write_text(json.dumps(known), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
