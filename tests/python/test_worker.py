"""The worker contract: the worker of `worker.py` runs tasks and actors, also when things break.

`scripts/test-python` runs these tests.
"""

from __future__ import annotations

import unittest

from harness import DEADLINE, FIRST, ClusterTest, OperationFailed, Proxy, wait_until
from marline.v1 import control_pb2 as pb


class Tasks(ClusterTest):
    def setUp(self) -> None:
        super().setUp()
        self.process = self.worker(cpus=1)

    def test_a_task_returns_a_value(self) -> None:
        self.assertEqual(self.client.result(self.client.submit("add", 2, 3)), 5)

    def test_values_go_there_and_back_as_they_are(self) -> None:
        value = {"text": "ü", "bytes": b"\0\xff", "list": [1, -2, 1.5, None, True], "map": {"a": {}}}
        self.open_gate()
        self.assertEqual(self.client.result(self.client.submit("hold", value, *self.places())), value)

    def test_a_large_value_arrives(self) -> None:
        value = b"x" * (6 << 20)
        self.open_gate()
        task = self.client.submit("hold", value, *self.places())
        self.client.wait([task])
        following = self.client.submit("hold", FIRST, *self.places(), needs=[task])
        self.client.wait([following])
        self.assertEqual(self.client.GetTaskStatus(task_id=following).state, pb.TASK_STATE_FINISHED)

    def test_a_task_has_as_many_results_as_it_was_asked_for(self) -> None:
        self.assertEqual(self.client.values(self.client.submit("divide", 17, 5, returns=2)), [3, 2])
        with self.assertRaisesRegex(OperationFailed, "3 results were asked for, the code returned 2"):
            self.client.values(self.client.submit("divide", 17, 5, returns=3))

    def test_an_exception_of_a_task_is_its_error(self) -> None:
        with self.assertRaises(OperationFailed) as caught:
            self.client.result(self.client.submit("fail", "no luck"))
        error = caught.exception.error
        self.assertEqual((caught.exception.kind, error.may_have_run), ("FAILED", True))
        self.assertEqual(getattr(error.failure, "class"), "ValueError")
        self.assertIn("no luck", error.message)
        self.assertRegex(error.failure.traceback, r'(?s)sample.py", line \d+, in fail.*ValueError: no luck')

    def test_a_class_that_is_retried_runs_again(self) -> None:
        classes = {"classes": {"names": ["ValueError"]}}
        options = {"retry_on": classes, "max_retries": {"times": 2}, "retry_delay_ms": 1}
        task = self.client.submit("fail", "no luck", options=options)
        with self.assertRaisesRegex(OperationFailed, "no luck"):
            self.client.result(task)
        self.assertEqual(self.client.GetTaskStatus(task_id=task).attempts, 3)

    def test_a_function_that_the_worker_does_not_have_is_not_found(self) -> None:
        with self.assertRaises(OperationFailed) as caught:
            self.client.result(self.client.submit("python:nothing"))
        self.assertEqual(caught.exception.kind, "NOT_FOUND")
        self.assertFalse(caught.exception.error.may_have_run)

    def test_a_function_that_nobody_provides_is_not_found(self) -> None:
        with self.assertRaises(OperationFailed) as caught:
            self.client.result(self.client.submit("nothing"))
        self.assertEqual(caught.exception.kind, "NOT_FOUND")
        self.assertIn("no worker provides", caught.exception.error.message)

    def test_a_running_task_is_cancelled(self) -> None:
        task = self.client.submit("hold", 1, *self.places())
        wait_until(self.journal, "the task starts")
        self.assertTrue(self.client.CancelTask(task_id=task).had_not_ended)
        with self.assertRaises(OperationFailed) as caught:
            self.client.result(task)
        self.assertEqual(caught.exception.kind, "CANCELLED")
        wait_until(lambda: len(self.journal()) == 2, "the task's code stops")
        self.assertEqual([what for what, _, _ in self.journal()], ["started", "stopped"])
        self.assertEqual(self.client.result(self.client.submit("add", 1, 1)), 2, "the worker goes on")

    def test_a_task_that_takes_too_long_is_stopped(self) -> None:
        task = self.client.submit("hold", 1, *self.places(), options={"timeout_ms": 100})
        with self.assertRaises(OperationFailed) as caught:
            self.client.result(task)
        self.assertEqual(caught.exception.kind, "TIMEOUT")

    def test_a_task_gets_the_result_of_another(self) -> None:
        first = self.client.submit("hold", 40, *self.places())
        second = self.client.submit("add", FIRST, 2, needs=[first])
        wait_until(self.journal, "the first task starts")
        self.assertEqual(self.client.GetTaskStatus(task_id=second).state, pb.TASK_STATE_PENDING)
        self.open_gate()
        self.assertEqual(self.client.result(second), 42)

    def test_a_thousand_tasks_go_through_the_backlog(self) -> None:
        tasks = self.backlog(self.process, 1000)
        self.assertEqual(len(self.journal()), 1, "one task runs on one CPU")
        self.open_gate()
        self.client.wait(tasks)
        self.assertEqual([self.client.result(task) for task in tasks], list(range(1000)))
        steps = [what for what, _, _ in self.journal("started", "ended")]
        self.assertTrue(steps == ["started", "ended"] * 1000, "each task ran once, one after another")

    def test_a_task_in_the_backlog_is_cancelled_or_taken_back(self) -> None:
        tasks = self.backlog(self.process, 4)
        self.client.CancelTask(task_id=tasks[1])
        with self.assertRaises(OperationFailed) as caught:
            self.client.result(tasks[1])
        self.assertEqual(caught.exception.kind, "CANCELLED")
        other = self.worker(cpus=1)
        wait_until(lambda: other.pid in [pid for _, pid, _ in self.journal()], "the idle worker gets a task")
        self.assertGreater(self.client.ClusterResources().counters.refused, 0)
        self.open_gate()
        self.assertEqual([self.client.result(tasks[n]) for n in (0, 2, 3)], [0, 2, 3])


class Actors(ClusterTest):
    def setUp(self) -> None:
        super().setUp()
        self.process = self.worker()

    def state_of(self, actor: str) -> pb.ActorStatus:
        return self.client.GetActorStatus(actor_id=actor)

    def test_an_actor_keeps_its_state_and_the_order_of_calls(self) -> None:
        actor = self.client.create("Counter", 100)
        calls = [self.client.call(actor, "add", number) for number in range(200)]
        self.assertEqual(self.client.result(calls[-1]), 100 + sum(range(200)))
        self.assertEqual(self.client.result(self.client.call(actor, "order")), list(range(200)))
        self.assertEqual(self.state_of(actor).state, pb.ACTOR_STATE_READY)

    def test_a_constructor_that_raises_ends_the_actor_with_its_error(self) -> None:
        actor = self.client.create("Counter", -1)
        with self.assertRaisesRegex(OperationFailed, "starts at 0 or above"):
            self.client.result(self.client.call(actor, "add", 1))
        wait_until(lambda: self.state_of(actor).state == pb.ACTOR_STATE_DEAD, "the actor is dead")
        status = self.state_of(actor)
        self.assertEqual(status.cause, pb.DEATH_CAUSE_CONSTRUCTOR_FAILED)
        self.assertIn("starts at 0 or above", str(status.error))

    def test_a_method_that_raises_leaves_the_actor_as_it_is(self) -> None:
        actor = self.client.create("Counter", 1)
        with self.assertRaises(OperationFailed) as caught:
            self.client.result(self.client.call(actor, "fail"))
        self.assertEqual(getattr(caught.exception.error.failure, "class"), "KeyError")
        with self.assertRaises(OperationFailed) as caught:
            self.client.result(self.client.call(actor, "nothing"))
        self.assertEqual(caught.exception.kind, "NOT_FOUND")
        self.assertEqual(self.client.result(self.client.call(actor, "add", 1)), 2)

    def test_a_call_gets_the_result_of_a_task(self) -> None:
        actor = self.client.create("Counter", FIRST, needs=[self.client.submit("add", 1, 2)])
        call = self.client.call(actor, "add", FIRST, needs=[self.client.submit("add", 3, 4)])
        self.assertEqual(self.client.result(call), 10)

    def test_calls_are_cancelled_running_or_not(self) -> None:
        actor = self.client.create("Counter", 1)
        running = self.client.call(actor, "hold", *self.places())
        waiting = self.client.call(actor, "add", 1000)
        last = self.client.call(actor, "add", 1)
        wait_until(self.journal, "the call starts")
        for call in (waiting, running):
            self.client.CancelTask(task_id=call)
            with self.assertRaises(OperationFailed) as caught:
                self.client.result(call)
            self.assertEqual(caught.exception.kind, "CANCELLED")
        self.assertEqual(self.client.result(last), 2)

    def test_a_named_actor_is_found_or_made_once(self) -> None:
        first = self.client.create("Counter", 5, name="one")
        with self.assertRaises(OperationFailed) as caught:
            self.client.create("Counter", 5, name="one")
        self.assertEqual(caught.exception.kind, "ALREADY_EXISTS")
        again = self.client.create("Counter", 7, name="one", options={"get_if_exists": True})
        self.assertEqual(again, first)
        self.assertEqual(self.client.GetActorStatus(name="one").actor_id, first)
        self.assertEqual(self.client.result(self.client.call(again, "add", 1)), 6)

    def test_a_deleted_actor_is_gone_with_what_it_did(self) -> None:
        actor = self.client.create("Counter", 5)
        running = self.client.call(actor, "hold", *self.places())
        waiting = self.client.call(actor, "add", 1)
        wait_until(self.journal, "the call starts")
        self.client.DeleteActor(actor_id=actor)
        for call in (running, waiting):
            self.assertRaises(OperationFailed, self.client.result, call)
        wait_until(lambda: len(self.journal()) == 2, "the call's code stops")
        self.assertEqual(self.state_of(actor).cause, pb.DEATH_CAUSE_DELETED)
        with self.assertRaises(OperationFailed) as caught:
            self.client.result(self.client.call(actor, "add", 1))
        self.assertEqual(caught.exception.kind, "GONE")
        unknown = pb.WorkerStatus(actors=1)
        wait_until(lambda: (self.status(self.process) or unknown).actors == 0, "the worker has no actor")


class Kills(ClusterTest):
    """The controller sees a process die at once: the lease is longer than any wait here."""

    def test_work_of_a_killed_worker_runs_again_elsewhere(self) -> None:
        first = self.worker()
        actor = self.client.create("Counter", 10, options={"max_restarts": {"times": 1}})
        self.assertEqual(self.client.result(self.client.call(actor, "add", 5)), 15)
        before = self.client.GetActorStatus(actor_id=actor)
        task = self.client.submit("hold", 7, *self.places(), options={"retry_delay_ms": 1})
        wait_until(self.journal, "the task starts")
        second = self.worker()
        first.kill()
        wait_until(lambda: len(self.journal()) == 2, "the task starts again")
        self.open_gate()
        self.assertEqual(self.client.result(task), 7)
        self.assertEqual([pid for _, pid, _ in self.journal()], [first.pid, second.pid])
        self.assertEqual(self.client.GetTaskStatus(task_id=task).attempts, 2)
        self.assertEqual(self.client.result(self.client.call(actor, "add", 5)), 15, "the actor starts from its constructor")
        self.assertEqual(self.client.result(self.client.call(actor, "pid")), second.pid)
        after = self.client.GetActorStatus(actor_id=actor)
        self.assertGreater(after.epoch, before.epoch)
        self.assertEqual(after.restarts, 1)

    def test_an_actor_without_restarts_dies_with_its_worker(self) -> None:
        process = self.worker()
        actor = self.client.create("Counter", 10)
        call = self.client.call(actor, "hold", *self.places())
        wait_until(self.journal, "the call starts")
        process.kill()
        with self.assertRaises(OperationFailed) as caught:
            self.client.result(call)
        self.assertTrue(caught.exception.error.may_have_run)
        self.assertEqual(
            self.client.GetActorStatus(actor_id=actor).cause, pb.DEATH_CAUSE_RESTARTS_USED_UP
        )


class Connections(ClusterTest):
    def test_a_broken_connection_costs_nothing(self) -> None:
        proxy = self.proxy()
        process = self.worker(address=proxy.address)
        epoch = self.status(process).epoch
        task = self.client.submit("hold", 7, *self.places())
        wait_until(self.journal, "the task starts")
        proxy.cut()
        self.open_gate()
        self.assertEqual(self.client.result(task), 7)
        self.assertEqual(self.client.GetTaskStatus(task_id=task).attempts, 1)
        self.assertEqual(len(self.journal()), 1)
        self.assertEqual(self.status(process).epoch, epoch, "the session went on")

    def test_connections_that_break_again_and_again_lose_and_repeat_nothing(self) -> None:
        proxy = self.proxy()
        self.worker(address=proxy.address)
        self.open_gate()
        actor = self.client.create("Counter", 0)
        tasks, calls = [], []
        for number in range(300):
            tasks.append(self.client.submit("hold", number, *self.places()))
            calls.append(self.client.call(actor, "add", number))
            if number % 20 == 10:
                proxy.cut()
        self.client.wait(tasks + calls)
        self.assertEqual([self.client.result(task) for task in tasks], list(range(300)))
        self.assertEqual(self.client.result(self.client.call(actor, "order")), list(range(300)))
        self.assertEqual(len(self.journal()), 300, "each task ran once")
        self.assertEqual(self.client.ClusterResources().counters.lost, 0)


class Leases(ClusterTest):
    arguments = ("--lease", "5s")

    def test_a_worker_that_hears_nothing_stops_before_its_work_is_given_away(self) -> None:
        proxy = self.proxy()
        cut_off = self.worker(address=proxy.address)
        epoch = self.status(cut_off).epoch
        task = self.client.submit("hold", 7, *self.places(), options={"retry_delay_ms": 1})
        wait_until(self.journal, "the task starts")
        other = self.worker()
        proxy.passing.clear()
        wait_until(lambda: len(self.journal()) == 3, "the task starts again")
        (_, _, _), (stopped, where, at), (started, there, later) = self.journal()
        self.assertEqual([stopped, where, started, there], ["stopped", cut_off.pid, "started", other.pid])
        self.assertLess(at, later)
        proxy.passing.set()
        wait_until(lambda: (self.status(cut_off) or pb.WorkerStatus()).epoch > epoch, "the worker joins again")
        self.open_gate()
        self.assertEqual(self.client.result(task), 7)
        self.assertEqual(len(self.journal()), 3)

    def test_a_worker_stays_as_long_as_it_answers(self) -> None:
        process = self.worker()
        epoch = self.status(process).epoch
        joined = self.client.ClusterResources().uptime_ms
        # Longer than the lease: only pings and pongs renew it.
        wait_until(lambda: self.client.ClusterResources().uptime_ms > joined + 7500, "more than a lease has passed")
        self.assertEqual(self.status(process).epoch, epoch)
        self.assertEqual(self.client.result(self.client.submit("add", 1, 1)), 2)


class Draining(ClusterTest):
    def test_a_worker_that_drains_finishes_and_leaves(self) -> None:
        first = self.worker(cpus=1)
        name = self.status(first).worker_id
        actor = self.client.create(
            "Counter", 1, options={"max_restarts": {"times": 0}, "placement": {"cpu": 0}}
        )
        self.client.result(self.client.call(actor, "add", 1))
        tasks = self.backlog(first, 4)
        self.client.DrainWorker(worker_id=name, grace_ms=int(DEADLINE * 1000))
        second = self.worker(cpus=1)
        wait_until(lambda: len(self.journal()) == 2, "the backlog goes elsewhere")
        self.open_gate()
        self.assertEqual([self.client.result(task) for task in tasks], [0, 1, 2, 3])
        self.assertEqual(first.wait(DEADLINE), 0)
        self.assertEqual([pid for _, pid, _ in self.journal()], [first.pid] + [second.pid] * 3)
        self.assertEqual(self.client.result(self.client.call(actor, "pid")), second.pid)
        self.assertEqual(self.client.ClusterResources().counters.lost, 0)

    def test_a_task_that_runs_when_the_grace_is_over_moves_without_using_up_a_retry(self) -> None:
        first = self.worker(cpus=1)
        name = self.status(first).worker_id
        task = self.client.submit("hold", 7, *self.places(), options={"max_retries": {"times": 0}})
        wait_until(self.journal, "the task runs")
        self.client.DrainWorker(worker_id=name, grace_ms=1)
        self.assertEqual(first.wait(DEADLINE), 0)
        second = self.worker(cpus=1)
        wait_until(lambda: len(self.journal()) == 3, "the task starts again")
        self.open_gate()
        self.assertEqual(self.client.result(task), 7)
        self.assertEqual([pid for _, pid, _ in self.journal()], [first.pid, first.pid, second.pid])


if __name__ == "__main__":
    unittest.main()
