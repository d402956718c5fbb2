"""Functions whose every call holds a lock, or is a job that runs once.

The name or key is a template: ``"report:{id}"`` takes the parameter ``id`` of the function. Only plain parameter names are allowed, so a
template cannot reach into an object.
"""

from __future__ import annotations

import functools
import inspect
import string
from collections.abc import Awaitable, Callable
from typing import Any

from ._errors import LockBusy, LockTimeout
from ._jobs import Completion, Job, JobRequest
from ._requests import Request
from ._words import SKIPPED

__all__ = ["locked", "once"]

Function = Callable[..., Any]


class Template:
    """A template, checked against the parameters of a function."""

    def __init__(self, template: str, function: Function, given: int) -> None:
        #: ``given`` is the number of arguments that the decorator itself passes, before those of the caller.
        self._template = template
        parameters = list(inspect.signature(function).parameters.values())[given:]
        self._signature = inspect.Signature(parameters)
        for _, field, format_spec, conversion in string.Formatter().parse(template):
            if field is None:
                continue
            if not field.isidentifier() or format_spec or conversion:
                raise TypeError(f"{template!r}: `{{{field}}}` is not a plain parameter name; compute the name in the function, and use `with`")
            parameter = self._signature.parameters.get(field)
            if parameter is None or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise TypeError(f"{template!r}: {function.__qualname__}{self._signature} has no parameter `{field}`")

    def fill(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> str:
        """The text for one call."""
        bound = self._signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        return self._template.format_map(bound.arguments)


def _refuse_generators(function: Function, decorator: str) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{decorator} cannot hold a lock for a generator, which runs after the call: use `with` in {function.__qualname__}")


def locked(template: str, request: Callable[[str], Request[Any]], *, skips: bool, passes_lock: bool) -> Callable[[Function], Function]:
    """The decorator of :meth:`Client.locked`."""

    def decorate(function: Function) -> Function:
        _refuse_generators(function, "@client.locked")
        name = Template(template, function, int(passes_lock))

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def locked_async(*arguments: Any, **keywords: Any) -> Any:
                is_held = False
                try:
                    async with request(name.fill(arguments, keywords)) as lock:
                        is_held = True
                        return await function(*((lock,) if passes_lock else ()), *arguments, **keywords)
                except (LockBusy, LockTimeout):
                    if skips and not is_held:
                        return SKIPPED
                    raise

            return locked_async

        @functools.wraps(function)
        def locked_sync(*arguments: Any, **keywords: Any) -> Any:
            # The function may fail because another lock is busy, which is no reason to skip.
            is_held = False
            try:
                with request(name.fill(arguments, keywords)) as lock:
                    is_held = True
                    return function(*((lock,) if passes_lock else ()), *arguments, **keywords)
            except (LockBusy, LockTimeout):
                if skips and not is_held:
                    return SKIPPED
                raise

        return locked_sync

    return decorate


def once(key: str, request: Callable[[str], JobRequest], *, passes_job: bool) -> Callable[[Function], Function]:
    """The decorator of :meth:`Client.once`."""

    def decorate(function: Function) -> Function:
        _refuse_generators(function, "@client.once")
        template = Template(key, function, int(passes_job))

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def once_async(*arguments: Any, **keywords: Any) -> Completion:
                def work(job: Job) -> Awaitable[object]:
                    made: Awaitable[object] = function(*((job,) if passes_job else ()), *arguments, **keywords)
                    return made

                return await request(template.fill(arguments, keywords)).run_async(work)

            return once_async

        @functools.wraps(function)
        def once_sync(*arguments: Any, **keywords: Any) -> Completion:
            def work(job: Job) -> object:
                return function(*((job,) if passes_job else ()), *arguments, **keywords)

            return request(template.fill(arguments, keywords)).run(work)

        return once_sync

    return decorate
