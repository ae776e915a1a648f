"""Reinforcement learning in one file, with processes that are killed on the way.

- Players (actors) catch a falling ball. They ask an inference server for moves.
- The inference server (an actor) answers many players with one pass through the model.
- The weights (an actor) learn from the games of the players. Their state is saved every few updates.

With ``--kill``, the process of the weights and that of a player are ended with ``kill -9`` half way. The
run goes on. At the end the program checks that no more updates were forgotten than are made between two
saves.

    python examples/rl.py --kill                   a cluster in this process
    python examples/rl.py --address auto           the cluster of `marline up` on this machine, or host:port
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import signal
import sys
from statistics import fmean

import marline

WIDTH = 7  # columns; the ball falls for WIDTH - 1 steps, so a player can always catch it
GAMES = 16  # games that a player plays at a time
PLAYERS = 4
UPDATES = 400
TELL = 50  # updates between two lines of progress
RATE = 0.5  # learning rate
EVERY = 7  # calls of the weights between two saves

Table = list[list[float]]  # for each distance between ball and paddle, a number for each move


def nothing_learned() -> Table:
    return [[0.0, 0.0, 0.0] for _ in range(2 * WIDTH - 1)]


@marline.remote(max_restarts=-1, max_task_retries=-1, checkpoint_every=EVERY)
class Weights:
    """What was learned so far. A new instance starts from the state that was saved last."""

    def __init__(self) -> None:
        self.updates = 0
        self.table = nothing_learned()

    @marline.method(num_returns=2)
    def apply(self, rollout: tuple[float, Table]) -> tuple[int, Table]:
        self.updates += 1
        for row, slopes in zip(self.table, rollout[1], strict=True):
            row[:] = [weight + RATE * slope for weight, slope in zip(row, slopes, strict=True)]
        return self.updates, self.table

    def save_checkpoint(self) -> tuple[int, Table]:
        return self.updates, self.table

    def load_checkpoint(self, state: tuple[int, Table]) -> None:
        self.updates, self.table = state

    def process(self) -> tuple[str, int]:
        return os.uname().nodename, os.getpid()


@marline.remote(max_restarts=-1, max_task_retries=-1)
class Inference:
    """Collects the questions of players for a millisecond, and answers all of them at once."""

    def __init__(self) -> None:
        self.table = nothing_learned()
        self.asked: list[tuple[list[int], asyncio.Future[Table]]] = []
        self.questions = self.batches = 0

    async def use(self, table: Table) -> None:
        self.table = table

    async def chances(self, distances: list[int]) -> Table:
        """Returns the chance of each move, for each distance."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Table] = loop.create_future()
        self.asked.append((distances, answer))
        if len(self.asked) == 1:
            loop.call_later(0.001, self.answer)
        return await answer

    def answer(self) -> None:
        batch, self.asked = self.asked, []
        self.questions, self.batches = self.questions + len(batch), self.batches + 1
        policy = [softmax(row) for row in self.table]  # one pass through the model for all
        for distances, answer in batch:
            if not answer.done():
                answer.set_result([policy[distance] for distance in distances])

    async def batch_size(self) -> float:
        return self.questions / max(self.batches, 1)


def softmax(row: list[float]) -> list[float]:
    exps = [math.exp(weight - max(row)) for weight in row]
    return [exp / sum(exps) for exp in exps]


@marline.remote(max_restarts=-1, max_task_retries=-1)
class Player:
    """Plays some games side by side. Returns the part that it won, and how to change the weights."""

    def __init__(self, inference: marline.ActorHandle) -> None:
        self.inference = inference

    def play(self) -> tuple[float, Table]:
        balls = [random.randrange(WIDTH) for _ in range(GAMES)]
        paddles = [random.randrange(WIDTH) for _ in range(GAMES)]
        moves: list[tuple[int, int, int, list[float]]] = []
        for _ in range(WIDTH - 1):
            distances = [ball - paddle + WIDTH - 1 for ball, paddle in zip(balls, paddles, strict=True)]
            chances = marline.get(self.inference.chances.remote(distances))
            for game, (distance, chance) in enumerate(zip(distances, chances, strict=True)):
                [move] = random.choices((0, 1, 2), chance)
                moves.append((game, distance, move, chance))
                paddles[game] = min(max(paddles[game] + move - 1, 0), WIDTH - 1)
        won = [ball == paddle for ball, paddle in zip(balls, paddles, strict=True)]
        score = fmean(won)
        slopes = nothing_learned()  # REINFORCE: raise the chance of moves in games above the mean
        for game, distance, move, chance in moves:
            for other in range(3):
                slopes[distance][other] += (won[game] - score) * ((other == move) - chance[other]) / GAMES
        return score, slopes

    def process(self) -> tuple[str, int]:
        return os.uname().nodename, os.getpid()


def kill(what: str, host: str, pid: int) -> None:
    """Kills a process of the cluster with ``kill -9``, from outside."""
    if host != os.uname().nodename:
        sys.exit(f"--kill: {what} runs on {host}: start this program there")
    os.kill(pid, signal.SIGKILL)
    print(f"  kill -9 {pid} ({what})")


def train(killing: bool) -> bool:
    """Returns whether the players learned, and no more updates were forgotten than allowed."""
    weights, inference = Weights.remote(), Inference.remote()
    players = [Player.remote(inference) for _ in range(PLAYERS)]
    processes = marline.get([weights.process.remote(), players[0].process.remote()])
    playing = {player.play.remote(): player for player in players}
    scores: list[float] = []
    updates = 0
    while len(scores) < UPDATES:
        [rollout], _ = marline.wait(list(playing))
        player = playing.pop(rollout)
        playing[player.play.remote()] = player
        if killing and len(scores) == UPDATES // 2:
            kill("the weights", *processes[0])
            kill("a player", *processes[1])
        # References go from actor to actor, so this process does not unpickle the tables.
        count, table = weights.apply.remote(rollout)
        inference.use.remote(table)
        updates = marline.get(count)
        scores.append(marline.get(rollout)[0])
        if len(scores) % TELL == 0:
            print(f"  {len(scores):3} of {UPDATES} updates, {fmean(scores[-TELL:]):.0%} caught", flush=True)
    first, last, forgotten = fmean(scores[:TELL]), fmean(scores[-TELL:]), UPDATES - updates
    print(f"{first:.0%} caught at the beginning, {last:.0%} at the end")
    print(f"{marline.get(inference.batch_size.remote()):.1f} players answered at a time")
    print(f"{UPDATES} updates made, {forgotten} forgotten (at most {EVERY if killing else 0})")
    return last > first + 0.2 and 0 <= forgotten <= (EVERY if killing else 0)


def main() -> None:
    parser = argparse.ArgumentParser(description="actors that learn to catch a ball")
    parser.add_argument("--address", help="the cluster: auto, or host:port (default: one in this process)")
    parser.add_argument("--kill", action="store_true", help="kill -9 the weights and a player half way")
    arguments = parser.parse_args()
    with marline.init(arguments.address):
        balanced = train(arguments.kill)
    if not balanced:
        sys.exit("nothing was learned, or too many updates were forgotten")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
