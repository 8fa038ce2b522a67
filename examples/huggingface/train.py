# /// script
# dependencies = ["torch", "numpy", "transformers", "accelerate"]
# ///
"""Hugging Face's Trainer, unchanged: in a TrainingJob it reports its progress by itself.

The model is small and starts from random weights, so nothing is downloaded from the hub.
"""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

WORDS, LENGTH = 64, 16


def rows(count: int) -> list[dict[str, torch.Tensor]]:
    """Return sentences of random words. The label says whether the sentence has word 7."""
    torch.manual_seed(0)
    words = torch.randint(8, WORDS, (count, LENGTH))
    words[::2, 3] = 7
    return [
        {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": (row == 7).any().long()} for row in words
    ]


def main() -> None:
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    arguments = TrainingArguments(
        output_dir="checkpoints",
        num_train_epochs=6,
        per_device_train_batch_size=32,
        learning_rate=2e-3,
        logging_steps=20,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    data = rows(1024)
    trainer = Trainer(model=BertForSequenceClassification(config), args=arguments, train_dataset=data)
    trainer.train()
    loss = trainer.evaluate(data[:256])["eval_loss"]
    print(
        f"{'learnt' if loss < 0.1 else 'failed'}: loss {loss:.3f} after {trainer.state.global_step} steps", flush=True
    )


if __name__ == "__main__":
    main()
