"""Fine-tune a small Llama with LoRA on the standard library's help texts with Trainer."""

import pydoc_data.topics
from dataclasses import dataclass

from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    HfArgumentParser,
    LlamaConfig,
    Trainer,
    TrainingArguments,
    set_seed,
)


@dataclass
class ScriptArguments:
    lora_r: int = 8
    length: int = 64


def main() -> None:
    parser = HfArgumentParser((ScriptArguments, TrainingArguments))
    script, arguments = parser.parse_args_into_dataclasses()
    set_seed(arguments.seed)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=script.length,
    )
    model = AutoModelForCausalLM.from_config(config)
    model.enable_input_require_grads()
    lora = LoraConfig(r=script.lora_r, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(model, lora)
    model.print_trainable_parameters()

    text = "\n".join(pydoc_data.topics.topics.values()).encode()
    pieces = [
        list(text[start : start + script.length])
        for start in range(0, len(text) - script.length, script.length)
    ]
    data = [{"input_ids": piece, "labels": piece} for piece in pieces]
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
    model.save_pretrained(arguments.output_dir)


if __name__ == "__main__":
    main()
