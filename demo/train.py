"""Trains the demo model for a given wall-clock time.

    train.py --minutes N --work DIR

DIR receives tokenizer.json, checkpoint.pt (every five minutes and at the end) and training-log.txt. The learning rate
follows the clock, not the step count: warm-up, then a cosine that ends with the budget, so the result is finished
whenever N says so; how much text it has seen depends on the machine. If DIR holds a checkpoint, training goes on from
there within the same budget.

The loss is cross-entropy of the next token, plus that of the token after it from the multi-token-prediction block, plus
a term that keeps the experts evenly used.
"""

import argparse
import math
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import corpus
import tokenizer as bpe
from model import Config, Model
from optimizer import FlatAdamW, Shared

VOCABULARY, CHECKPOINT, LOG = "tokenizer.json", "checkpoint.pt", "training-log.txt"  # in the work directory

SEED = 1611
BATCH_TOKENS = 2048  # per step, over all processes
WINDOW = 256  # positions a sequence trains on
LONG_WINDOW = 1024  # and towards the end, so that attention knows distances beyond WINDOW
LONG_FROM = 0.9  # of the budget
AHEAD = 2  # tokens needed beyond a window: the next one, and the one after it
PEAK_LEARNING_RATE = 2e-3
FINAL_SHARE = 0.01  # of the peak, at the end of the budget
WARM_UP = 0.02  # of the budget
AHEAD_WEIGHT = 0.3
BALANCE_WEIGHT = 0.02
HELD_OUT_WINDOWS = 16  # per log line; the last line uses all
LOG_EVERY_S = 60.0
SAVE_EVERY_S = 300.0

# For the training processes. glibc otherwise returns every larger tensor to the system and faults it in again, which
# costs as much time as the arithmetic; OpenBLAS would start threads of its own.
PROCESS_ENVIRONMENT = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}


def stream(tokenizer: bpe.Tokenizer, documents: list[str]) -> list[Tensor]:
    """Each document's tokens, behind an end-of-text."""
    return [torch.tensor([tokenizer.end_of_text, *tokenizer.encode(text)]) for text in documents]


def windows(documents: list[Tensor], window: int) -> Tensor:
    """The documents on one string, cut into rows of window + AHEAD tokens that overlap by AHEAD; a rest is dropped."""
    return torch.cat(documents).unfold(0, window + AHEAD, window)


def learning_rate(progress: float) -> float:
    """For the spent share of the time budget, 0 to 1."""
    if progress < WARM_UP:
        return PEAK_LEARNING_RATE * max(progress / WARM_UP, 0.01)
    cosine = 0.5 + 0.5 * math.cos(math.pi * (progress - WARM_UP) / (1 - WARM_UP))
    return PEAK_LEARNING_RATE * (FINAL_SHARE + (1 - FINAL_SHARE) * cosine)


def next_token_loss(model: Model, hidden: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model.output(hidden).flatten(0, 1), targets.flatten())


def losses(model: Model, rows: Tensor, ahead_sequences: int) -> tuple[Tensor, Tensor, Tensor]:
    """(loss of the next token, of the one after it, load balance) over rows [B, window + AHEAD]."""
    hidden, balance = model.trunk(rows[:, :-AHEAD])
    loss = next_token_loss(model, hidden, rows[:, 1:-1])
    some = rows[:ahead_sequences]
    ahead, ahead_balance = model.look_ahead(hidden[:ahead_sequences], some[:, 1:-1])
    layers = model.config.n_layer
    balance = (balance * layers + ahead_balance) / (layers + 1)
    return loss, next_token_loss(model, ahead, some[:, AHEAD:]), balance


@torch.no_grad()
def held_out_losses(model: Model, rows: Tensor) -> tuple[float, float]:
    """(loss of the next token, of the one after it), means over `rows`."""
    groups = rows.split(BATCH_TOKENS // WINDOW)
    parts = [losses(model, group, len(group))[:2] for group in groups]
    weights = [len(group) / len(rows) for group in groups]
    loss, ahead = (sum(w * part[i].item() for w, part in zip(weights, parts)) for i in range(2))
    return loss, ahead


@dataclass
class Progress:
    """What a resumed run needs to know, beside weights and optimizer state."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass
class Averages:
    """Means of the losses since the last log line."""

    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    count: int = 0

    def add(self, values: tuple[Tensor, ...]) -> None:
        self.sums = [total + value.item() for total, value in zip(self.sums, values)]
        self.count += 1

    def take(self) -> list[float]:
        means = [total / max(self.count, 1) for total in self.sums]
        self.sums, self.count = [0.0, 0.0, 0.0], 0
        return means


class Trainer:
    """One of the training processes. Rank 0 also keeps the clock, the log and the checkpoint."""

    def __init__(self, work: Path, minutes: float, model: Model, shared: Shared, rank: int) -> None:
        self.work, self.budget_s, self.model, self.shared, self.rank = work, minutes * 60, model, shared, rank
        self.processes = len(shared.gradients)
        self.tokenizer = bpe.Tokenizer.load(work / VOCABULARY)
        text = corpus.load()
        self.documents = stream(self.tokenizer, text.train)
        self.held_out = windows(stream(self.tokenizer, text.held_out), WINDOW)
        self.optimizer = FlatAdamW(model, shared, rank)
        self.progress = Progress()
        if (work / CHECKPOINT).exists():
            self.resume()
        elif rank == 0:
            (work / LOG).write_text("")
            self.say(f"text: {len(text.train)} chapters, {sum(map(len, self.documents)):,} tokens; "
                     f"held out: {len(text.held_out)} chapters, {self.held_out.shape[0] * WINDOW:,} tokens")
            self.say(f"model: {shared.parameters.numel():,} parameters, vocabulary {len(self.tokenizer)}; "
                     f"budget {minutes:g} min; {BATCH_TOKENS} tokens a step in windows of {WINDOW}, "
                     f"from {LONG_FROM:.0%} of the budget of {LONG_WINDOW}; seed {SEED}")
        self.optimizer.spent = self.progress.seconds / self.budget_s
        shared.barrier.wait()  # nobody computes with weights that are still being loaded

    def say(self, line: str) -> None:
        print(line, flush=True)
        with (self.work / LOG).open("a") as log:
            log.write(line + "\n")

    def resume(self) -> None:
        saved = torch.load(self.work / CHECKPOINT)
        self.progress = Progress(**saved["progress"])
        if self.rank == 0:
            self.model.load_state_dict(saved["model"])
            self.shared.moments.copy_(saved["moments"])
            self.say(f"resumed at step {self.progress.step}")

    def save(self) -> None:
        saved = {
            "config": asdict(self.model.config),
            "model": {name: value.clone() for name, value in self.model.state_dict().items()},
            "moments": self.shared.moments,
            "progress": asdict(self.progress),
        }
        path = self.work / CHECKPOINT
        torch.save(saved, path.with_suffix(".partial"))
        path.with_suffix(".partial").replace(path)

    def report(self, averages: Averages, speed: float, rows: Tensor) -> None:
        loss, ahead, balance = averages.take()
        held_out, held_out_ahead = held_out_losses(self.model, rows)
        p = self.progress
        self.say(
            f"{p.seconds / 60:6.1f} min  step {p.step:5}  {p.tokens / 1e6:6.2f} M tokens  {speed:5.0f} tokens/s  "
            f"lr {self.shared.control[0]:.2e}  loss {loss:.4f} (2nd token {ahead:.4f})  "
            f"held-out {held_out:.4f} (2nd token {held_out_ahead:.4f})  balance {balance:.3f}"
        )

    def step(self, rows: Tensor) -> tuple[Tensor, ...]:
        """One update. rows [B, window + AHEAD] are the whole step's; this process takes its share of them."""
        if self.rank == 0:
            spent = self.progress.seconds / self.budget_s
            self.shared.control.copy_(torch.tensor([learning_rate(min(spent, 1.0)), spent]))
        own = rows[self.rank :: self.processes]
        loss, ahead, balance = losses(self.model, own, (len(own) + 1) // 2)
        (loss + AHEAD_WEIGHT * ahead + BALANCE_WEIGHT * balance).backward()
        self.progress.step += 1
        self.progress.tokens += rows.shape[0] * (rows.shape[1] - AHEAD)
        self.optimizer.step(self.progress.step)
        return loss, ahead, balance

    def batches(self):
        """Endless batches, the same in every process: each pass shuffles the chapters and the windows cut from them."""
        generator = torch.Generator().manual_seed(SEED + self.progress.step)
        while True:
            order = torch.randperm(len(self.documents), generator=generator)
            window = LONG_WINDOW if self.optimizer.spent >= LONG_FROM else WINDOW
            rows = windows([self.documents[index] for index in order], window)
            for batch in rows[torch.randperm(len(rows), generator=generator)].split(BATCH_TOKENS // window):
                if len(batch) == BATCH_TOKENS // window:
                    yield batch
                if (self.optimizer.spent >= LONG_FROM) != (window == LONG_WINDOW):
                    break

    def run(self) -> None:
        some = self.held_out[:: max(len(self.held_out) // HELD_OUT_WINDOWS, 1)]
        averages, batches, begun = Averages(), self.batches(), time.monotonic() - self.progress.seconds
        logged = saved = self.progress.seconds
        tokens_logged = self.progress.tokens
        while self.optimizer.spent < 1.0:
            averages.add(self.step(next(batches)))
            if self.rank != 0:
                continue
            now = self.progress.seconds = time.monotonic() - begun
            if now - logged >= LOG_EVERY_S:
                self.report(averages, (self.progress.tokens - tokens_logged) / (now - logged), some)
                logged, tokens_logged = time.monotonic() - begun, self.progress.tokens
            if now - saved >= SAVE_EVERY_S:
                self.save()
                saved = now
        if self.rank == 0:
            self.finish()

    def finish(self) -> None:
        self.save()
        held_out, ahead = held_out_losses(self.model, self.held_out)
        p = self.progress
        self.say(f"done: {p.seconds / 60:.1f} min, {p.step} steps, {p.tokens / 1e6:.2f} M tokens; "
                 f"all held-out text: loss {held_out:.4f} (2nd token {ahead:.4f}), perplexity {math.exp(held_out):.2f}")


def train_process(rank: int, work: Path, minutes: float, shared: Shared) -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # decayed states underflow, and denormal arithmetic is slow
    vocabulary_size = len(bpe.Tokenizer.load(work / VOCABULARY))
    Trainer(work, minutes, Model(Config(n_vocab=vocabulary_size)), shared, rank).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, required=True, help="wall-clock budget of the whole training")
    parser.add_argument("--work", type=Path, required=True, help="directory for vocabulary, checkpoint and log")
    parser.add_argument("--processes", type=int, default=2, help="one thread each")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    if not (arguments.work / VOCABULARY).exists():
        bpe.train(corpus.load().train, Config().n_vocab).save(arguments.work / VOCABULARY)
    torch.manual_seed(SEED)
    model = Model(Config(n_vocab=len(bpe.Tokenizer.load(arguments.work / VOCABULARY))))
    context = torch.multiprocessing.get_context("spawn")
    shared = Shared.make(model, arguments.processes, context)
    del model
    os.environ.update(PROCESS_ENVIRONMENT)
    torch.multiprocessing.spawn(
        train_process, (arguments.work, arguments.minutes, shared), nprocs=arguments.processes, join=True
    )


if __name__ == "__main__":
    main()
