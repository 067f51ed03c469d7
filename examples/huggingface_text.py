"""A Hugging Face text classifier with a binary head, trained with AUC-M + PESG. Nothing is downloaded.

pip install 'deepauc[hf]'; python examples/huggingface_text.py [--epochs 10]

The network is a tiny BERT with random weights, the text made up here: one complaint in ten. Put your own model from
AutoModelForSequenceClassification.from_pretrained(..., num_labels=1) in its place; image classifiers work the same way.
"""

import argparse
import random
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from deepauc import PESGSpec
from deepauc.integrations.huggingface import AUCTrainer

BAD, GOOD = ["late", "dirty", "rude", "loud", "cold"], ["clean", "quiet", "friendly", "warm"]
NEUTRAL = ["the", "patient", "room", "was", "meal", "nurse", "staff"]
WORDS = ["[PAD]", *BAD, *GOOD, *NEUTRAL]
LENGTH = 8


def make_reviews(count: int, seed: int) -> list[dict[str, object]]:
    """Sentences of eight words; a complaint holds two bad words, any other sentence at most one."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        complaint = draw.random() < 0.1
        bad = 2 if complaint else draw.randint(0, 1)
        words = draw.choices(BAD, k=bad) + draw.choices(GOOD, k=2) + draw.choices(NEUTRAL, k=LENGTH - bad - 2)
        draw.shuffle(words)
        rows.append({"input_ids": [WORDS.index(word) for word in words], "labels": int(complaint)})
    return rows


def main(epochs: int = 10) -> float:
    torch.manual_seed(0)
    train, evaluation = make_reviews(1_000, seed=0), make_reviews(500, seed=1)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=1,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = AUCTrainer(
            BertForSequenceClassification(config),
            TrainingArguments(
                folder,
                num_train_epochs=epochs,
                per_device_train_batch_size=32,
                lr_scheduler_type="constant",
                save_strategy="no",
                report_to=[],
                use_cpu=True,
                disable_tqdm=True,
            ),
            train_dataset=train,
            train_labels=[row["labels"] for row in train],
            positives_per_batch=8,
            pesg=PESGSpec(lr=0.5),
            milestones=[max(1, epochs // 2)],
            eval_dataset=evaluation,
        )
        trainer.train()
        value = trainer.evaluate()["eval_auroc"]
    print(f"AUC on 500 sentences it has not seen: {value:.3f}")
    return value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    main(**vars(parser.parse_args()))
