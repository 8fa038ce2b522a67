"""Hugging Face's Trainer with a tiny model. It knows nothing of who listens to its progress."""
# ruff: noqa: T201 (what it prints is what the test reads)

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

SIZE = 16
config = BertConfig(
    vocab_size=32,
    hidden_size=SIZE,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=SIZE,
    max_position_embeddings=SIZE,
)
words = torch.randint(0, 32, (64, SIZE))
rows = [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row[0] % 2} for row in words]
arguments = TrainingArguments(
    output_dir="/checkpoints", max_steps=20, logging_steps=5, save_strategy="no", use_cpu=True, disable_tqdm=True
)
done = Trainer(model=BertForSequenceClassification(config), args=arguments, train_dataset=rows).train()
print(f"train_loss {done.training_loss}")
