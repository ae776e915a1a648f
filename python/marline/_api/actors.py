"""Remote classes and actor handles: creating actors, calling and ending them.

The executor's side of an actor is in ``_executor.runner`` and ``_executor.event_loop``.
"""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from marline import _native
from marline._api.option_values import (
    ONE,
    STREAMING,
    Returns,
    checked_flag,
    checked_limit,
    checked_returns,
)
from marline._api.options import Options
from marline._api.scopes import current_scope
from marline._environment.environment import ship_env
from marline._session import namespaces, sessions

if TYPE_CHECKING:
    from marline._serialize.pickling import Code
    from marline._session.session import Session


# Whether the running code is a method of an in-process actor: one that a "sync" or "threads"
# ``Context`` created.
runs_in_process_actor: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "marline_runs_in_process_actor", default=False
)


class ActorExit(BaseException):
    """Raised by ``exit_actor()`` to end the actor whose method runs."""


class ActorClass:
    """A class whose instances are actors: ``C.remote(...)`` creates one.

    >>> import marline
    >>> @marline.remote
    ... class Counter:
    ...     def __init__(self, start):
    ...         self.count = start
    ...     def add(self, n):
    ...         self.count += n
    ...         return self.count
    >>> with marline.init(num_cpus=2):
    ...     counter = Counter.options(max_restarts=3).remote(100)
    ...     marline.get(counter.add.remote(7))
    107
    """

    def __init__(self, cls: type, options: Options) -> None:
        self._cls = cls
        self._options = options
        self._code: Code | None = None
        self._native: tuple[_native.Session, _native.Function, int] | None = None
        self._interface: Interface | None = None
        self.__doc__ = cls.__doc__
        self.__name__ = cls.__name__

    @property
    def __marline_remote__(self) -> type:
        """The class that was decorated."""
        return self._cls

    def __getstate__(self) -> dict[str, Any]:
        # The copy puts its code into the session that uses it. Pickled code with references is left
        # out: its references belong to a session, so the copy pickles the code again.
        code = self._code if self._code is None or self._code.references is None else None
        return {**self.__dict__, "_native": None, "_code": code}

    def __repr__(self) -> str:
        return f"<actor class {self._cls.__module__}.{self._cls.__qualname__}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self._cls.__name__} is an actor: create one with {self._cls.__name__}.remote()")

    def __mro_entries__(self, _: tuple[Any, ...]) -> tuple[type, ...]:
        name = self._cls.__name__
        raise TypeError(f"{name} is an actor: inherit from a plain class, and make both of them remote")

    def options(self, **options: Any) -> ActorClass:
        """Returns the same class with other options for its actors.

        An unknown option is a ``TypeError``. The options are those of ``@marline.remote``.
        """
        other = ActorClass(self._cls, self._options.with_actor_options(options))
        other._code = self._code
        other._interface = self._interface
        return other

    def remote(self, /, *args: Any, **kwargs: Any) -> ActorHandle:
        """Creates an actor: calls the class with these arguments in an executor. Returns a handle.

        References among the arguments arrive as their values. If the constructor fails, all calls
        fail with its error.
        """
        return self.create(sessions.current(), args, kwargs)

    def create(self, session: Session, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ActorHandle:
        """Creates an actor in a session."""
        native, known = session.native, self._native
        if known is None or known[0] is not native or known[2] != native.number:
            # Read before the put: if the number changes meanwhile, the next call puts the code
            # again.
            number = native.number
            known = self._native = native, self._ship_code(session), number
        is_async = is_async_class(self._cls)
        options = self._options.for_actor(is_async, has_checkpoint_methods(self._cls), session.namespace)
        if self._interface is None:
            self._interface = Interface.of(self._cls)
        interface = self._interface
        actor = native.create_actor(known[1], options, args, kwargs, interface.encode())
        return ActorHandle(actor, interface.class_name, interface.methods)

    def _ship_code(self, session: Session) -> _native.Function:
        """Puts the code of the class into a session."""
        from marline._serialize.pickling import dumps_code, put_code

        # References belong to a session: code that contains some is pickled again for each session.
        if self._code is None or self._code.references is not None:
            self._code = dumps_code(self._cls)
        code = self._code
        label = f"{self._cls.__module__}.{self._cls.__qualname__}"
        env = ship_env(self._options.runtime_env, session)
        put = put_code(session.native, self._cls, code, env)
        return _native.Function(env.runtime, label, code.key, put, Options().for_task(), Returns(0))


def is_async_class(cls: type) -> bool:
    """Returns whether a class has a coroutine method or an asynchronous generator."""
    import inspect

    methods = [method for _, method in inspect.getmembers(cls)]
    return any(
        inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method) for method in methods
    )


def has_checkpoint_methods(cls: type) -> bool:
    """Returns whether the class can save the state of its instances."""
    return all(callable(getattr(cls, name, None)) for name in ("save_checkpoint", "load_checkpoint"))


class Interface(NamedTuple):
    """The description of an actor's class that callers use, also those that find the actor by name."""

    class_name: str
    #: The methods and what each returns; ``None`` if they are not known.
    methods: dict[str, Returns] | None

    @staticmethod
    def of(cls: type) -> Interface:
        import inspect

        functions = inspect.getmembers(cls, inspect.isroutine)
        methods = {name: getattr(function, "__marline_returns__", ONE) for name, function in functions}
        return Interface(cls.__name__, methods)

    def encode(self) -> bytes:
        """Encodes it as JSON. Returns no bytes if it is longer than ``MAX_INTERFACE_BYTES``."""
        import json

        encoded = json.dumps([self.class_name, self.methods], separators=(",", ":")).encode()
        return encoded if len(encoded) <= _native.MAX_INTERFACE_BYTES else b""

    @staticmethod
    def decode(encoded: bytes, name: str) -> Interface:
        """Decodes the interface of the actor ``name``.

        No bytes mean an actor whose methods are not known: its interface was too long, or a program
        in another language created it.
        """
        import json

        if not encoded:
            return Interface(name, None)
        class_name, methods = json.loads(encoded)
        return Interface(class_name, {method: Returns(*returns) for method, returns in methods.items()})


class ActorHandle:
    """A handle to an actor: ``handle.method.remote(...)`` calls a method.

    The actor ends when its last handle, in any process, is gone. It also ends with its driver, unless
    work of another driver has a handle. A detached actor outlives both. Handles can be passed to
    tasks and calls. ``handle.method.options(...)`` sets options for one call: ``num_returns``,
    ``max_unconsumed``, ``timeout`` and ``durable``.

    >>> import marline, collections
    >>> with marline.init(num_cpus=2):
    ...     counter = marline.remote(collections.Counter).remote("hello")
    ...     marline.get(counter.most_common.options(timeout=60).remote(1))
    [('l', 2)]
    """

    _actor: _native.Actor
    _class_name: str
    #: The methods and what each returns; ``None`` if they are not known here.
    _methods: dict[str, Returns] | None

    def __init__(self, actor: _native.Actor, class_name: str, methods: dict[str, Returns] | None) -> None:
        actor.set_class_name(class_name)
        self.__dict__.update(_actor=actor, _class_name=class_name, _methods=methods)

    if not TYPE_CHECKING:  # With this method, type checkers would accept any assignment.

        def __setattr__(self, name: str, _: object) -> None:
            from marline._api.typo import no_attribute

            raise no_attribute(self._class_name, name)

    def __getattr__(self, name: str) -> ActorMethod:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        if self._methods is not None and name not in self._methods:
            from marline._api.typo import no_method

            raise no_method(self._class_name, name, self._methods)
        returns = ONE if self._methods is None else self._methods[name]
        method = ActorMethod(self._actor, name, returns)
        self.__dict__[name] = method
        return method

    def __copy__(self) -> ActorHandle:
        return self

    def __deepcopy__(self, _: Any) -> ActorHandle:
        return self  # Handles are immutable.

    def __reduce__(self) -> tuple[Any, ...]:
        return ActorHandle, (self._actor, self._class_name, self._methods)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and other._actor.id == self._actor.id

    def __hash__(self) -> int:
        return hash(self._actor.id)

    def __repr__(self) -> str:
        return f"<actor {self._class_name} {self._actor.id}>"


class ActorMethod:
    """A method of an actor: ``handle.method.remote(...)`` calls it."""

    __slots__ = ("_actor", "_name", "_returns", "_timeout")

    def __init__(
        self, actor: _native.Actor, name: str, returns: Returns, timeout: float | None = None
    ) -> None:
        self._actor = actor
        self._name = name
        self._returns = returns
        self._timeout = timeout

    def remote(self, /, *args: Any, **kwargs: Any) -> Any:
        """Calls the method. Returns a reference to its result, or what ``num_returns`` asks for.

        Calls of one process start in the order in which they were made. References among the
        arguments arrive as their values.
        """
        return self._actor.call(self._name, args, kwargs, self._returns, self._timeout)

    def options(
        self,
        *,
        num_returns: int | str | None = None,
        max_unconsumed: int | None = None,
        timeout: float | None = None,
        durable: bool | None = None,
    ) -> ActorMethod:
        """Returns the same method with other options for its calls.

        ``num_returns`` is the number of results, ``"streaming"`` or ``"dynamic"``;
        ``max_unconsumed`` limits the items of a stream that wait to be taken; ``timeout`` limits
        each attempt, in seconds; ``durable`` lets large results outlive their node.
        """
        timeout = checked_limit(timeout)
        returns = self._returns
        if max_unconsumed is not None and num_returns is None and returns.stream is not None:
            num_returns = STREAMING
        durable = returns.durable if durable is None else durable
        if num_returns is not None or max_unconsumed is not None:
            returns = checked_returns(1 if num_returns is None else num_returns, max_unconsumed, durable)
        else:
            returns = returns._replace(durable=checked_flag("durable", durable))
        return ActorMethod(self._actor, self._name, returns, self._timeout if timeout is None else timeout)

    def __repr__(self) -> str:
        return f"<method {self._name} of actor {self._actor.id}>"

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"a method of an actor is called with .remote(): {self._name}.remote()")


def get_actor(name: str, namespace: str | None = None, *, plain: bool = False) -> ActorHandle:
    """Finds the living actor with a name. Returns a handle to it.

    Looks in the driver's namespace, unless ``namespace`` names another one. ``plain=True`` is for
    actors in other languages: arguments and results are plain data. A name that no actor has is a
    ``NotFoundError``, which is a ``ValueError``.

    >>> import marline, collections
    >>> with marline.init(num_cpus=2):
    ...     counter = marline.remote(name="the counter")(collections.Counter).remote("hello")
    ...     marline.get(marline.get_actor("the counter").most_common.remote(1))
    [('l', 2)]
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a string, not {type(name).__name__}")
    return find_actor(sessions.current(), name, namespaces.checked(namespace), plain)


def find_actor(session: Session, name: str, namespace: str | None, plain: bool = False) -> ActorHandle:
    """Finds the living actor with a name through a session."""
    actor, encoded = session.native.find_actor(namespace or session.namespace, name, plain)
    return ActorHandle(actor, *Interface.decode(b"" if plain else encoded, name))


def kill(actor: ActorHandle, *, no_restart: bool = True) -> None:
    """Deletes an actor: its calls fail with ``ActorDiedError``.

    With ``no_restart=False`` only its process is killed: the actor restarts if it may
    (``max_restarts``).

    >>> import marline, collections
    >>> with marline.init(num_cpus=2):
    ...     counter = marline.remote(collections.Counter).remote("hello")
    ...     marline.kill(counter)
    ...     try:
    ...         marline.get(counter.total.remote())
    ...     except marline.ActorDiedError:
    ...         print("gone")
    gone
    """
    if not isinstance(actor, ActorHandle):
        raise TypeError(f"kill() takes the handle of an actor, not {type(actor).__name__}{_ends(actor)}")
    actor._actor.end(restart=not no_restart)


def _ends(thing: Any) -> str:
    """Returns a hint for an error message: the function that ends ``thing``."""
    return ": a task is ended with cancel()" if isinstance(thing, _native.ObjectRef) else ""


def exit_actor() -> NoReturn:
    """Ends the actor whose method calls this, for good.

    The call returns ``None``; other calls fail with ``ActorDiedError``. Functions that were
    registered with ``atexit`` run. Outside of an actor it is a ``RuntimeError``.

    >>> import marline
    >>> @marline.remote
    ... class Clerk:
    ...     def leave(self):
    ...         marline.exit_actor()
    >>> with marline.init(num_cpus=2):
    ...     print(marline.get(Clerk.remote().leave.remote()))
    None
    """
    scope = current_scope.get()
    running = scope.running() if scope is not None else None
    if (running is None or running.actor is None) and not runs_in_process_actor.get():
        raise RuntimeError("exit_actor() is for methods of actors: no actor runs here")
    raise ActorExit
