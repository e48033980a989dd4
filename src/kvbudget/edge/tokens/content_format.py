"""Whether a chat template reads a message's content as one string or as a list of parts.

vLLM 0.32 decides it from the template's syntax tree (`renderers/hf.py`, `_detect_content_format`): a loop over a
message's content means parts. The same tree gives the same answer here; another answer would be another prompt.
"""

from collections.abc import Iterator

from jinja2 import nodes


def reads_parts(template: nodes.Template) -> bool:
    """True: "openai" format, a list of parts. False: "string" format, texts joined by line feeds."""
    messages = set(_aliases(template, "messages"))
    message_names = _loop_targets(template, messages)
    in_macros: dict[int, set[str]] = {}
    for macro in template.find_all(nodes.Macro):
        contents = _content_parameters(template, macro, message_names)
        for loop in macro.find_all(nodes.For):
            # A later, inner macro overrides only when it has such parameters itself, as in vLLM.
            in_macros[id(loop)] = contents or in_macros.get(id(loop), set())
    return any(_loops_over_content(loop, message_names, in_macros) for loop in template.find_all(nodes.For))


def _loops_over_content(loop: nodes.For, message_names: list[str], in_macros: dict[int, set[str]]) -> bool:
    if any(_reads(loop.iter, name, "content") for name in message_names):
        return True
    if not isinstance(loop.iter, nodes.Name):
        return False
    contents = in_macros.get(id(loop))
    return loop.iter.name == "content" if contents is None else loop.iter.name in contents


def _content_parameters(template: nodes.Template, macro: nodes.Macro, message_names: list[str]) -> set[str]:
    """Parameters of a macro that receive some message's content in some call."""
    parameters = [argument.name for argument in macro.args]
    found: set[str] = set()
    for call in template.find_all(nodes.Call):
        if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
            continue
        given = [*zip(parameters, call.args, strict=False), *((word.key, word.value) for word in call.kwargs)]
        for parameter, value in given:
            if parameter in parameters and any(_reads(value, name, "content") for name in message_names):
                found.add(parameter)
    return found


def _aliases(template: nodes.Template, name: str) -> Iterator[str]:
    """`name` and every variable that is set to it or to a slice or filter of it, in any scope."""
    pending, seen = [name], {name}
    while pending:
        current = pending.pop(0)
        yield current
        for assignment in template.find_all(nodes.Assign):
            target = assignment.target
            if isinstance(target, nodes.Name) and target.name not in seen and _reads(assignment.node, current):
                seen.add(target.name)
                pending.append(target.name)


def _loop_targets(template: nodes.Template, iterated: set[str]) -> list[str]:
    return [
        loop.target.name
        for loop in template.find_all(nodes.For)
        if isinstance(loop.target, nodes.Name) and any(_reads(loop.iter, name) for name in iterated)
    ]


def _reads(node: nodes.Node | None, name: str, member: str | None = None) -> bool:
    """Whether `node` is the variable (or its member), seen through filters, tests and slices."""
    if isinstance(node, (nodes.Filter, nodes.Test)):
        return _reads(node.node, name, member)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _reads(node.node, name, member)
    if member is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == member and _reads_name(node.node, name)
    return isinstance(node, nodes.Getattr) and node.attr == member and _reads_name(node.node, name)


def _reads_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
