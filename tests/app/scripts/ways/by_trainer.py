"""transformers' Trainer with arguments of an argparse of the script's own."""

import argparse
import os

import tiny
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--ds", required=True)
parser.add_argument("--bs", type=int, default=2)
args = parser.parse_args()
arguments = TrainingArguments(
    output_dir=os.environ.get("WAYS_OUT", "out"),
    deepspeed=args.ds,
    per_device_train_batch_size=args.bs,
    gradient_accumulation_steps=4,
    max_steps=tiny.N_STEPS,
    use_cpu=True,
    report_to=[],
    save_strategy="no",
)
sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 64}
network = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2))


class Tells(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        tiny.tell(trainer.model_wrapped)


rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 64, (256, 16))]
trainer = Trainer(model=network, args=arguments, train_dataset=rows, callbacks=[Tells()])
trainer.train()
