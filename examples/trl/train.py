"""Fine-tune a small Llama on Python's own help with TRL's SFTTrainer; LoRA by `--use_peft`."""

import pydoc_data.topics
from dataclasses import dataclass, field

from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast
from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser, get_peft_config

TOPICS = pydoc_data.topics.topics


@dataclass
class ScriptArguments:
    vocab_size: int = field(default=1024, metadata={"help": "Words of the tokenizer."})
    test_share: float = field(default=0.1, metadata={"help": "Share of the data to test with."})


def make_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<pad>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TOPICS.values(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<pad>"
    )


def make_model(
    tokenizer: PreTrainedTokenizerFast, length: int, attention: str | None
) -> AutoModelForCausalLM:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=length,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention)


def make_dataset() -> Dataset:
    rows = [
        {"prompt": f"What is said of {name}?", "completion": f"\n{paragraph}"}
        for name, text in TOPICS.items()
        for paragraph in text.split("\n\n")
        if len(paragraph) > 200
    ]
    return Dataset.from_list(rows)


def main(script: ScriptArguments, training: SFTConfig, model: ModelConfig) -> None:
    tokenizer = make_tokenizer(script.vocab_size)
    data = make_dataset().train_test_split(script.test_share, seed=training.seed)
    trainer = SFTTrainer(
        model=make_model(tokenizer, training.max_length, model.attn_implementation),
        args=training,
        train_dataset=data["train"],
        eval_dataset=data["test"] if training.eval_strategy != "no" else None,
        processing_class=tokenizer,
        peft_config=get_peft_config(model),
    )
    trainer.train()
    trainer.save_model(training.output_dir)
    if training.push_to_hub:
        trainer.push_to_hub()


if __name__ == "__main__":
    parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))
    main(*parser.parse_args_and_config())
