"""A parser for the declarations in a C++ header, which compares two versions of a header.

It parses comments, preprocessor directives, namespaces, classes, enumerations, functions and
variables. It takes both branches of every #if, and does not expand macros.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|(\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+')", re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*#[^\n]*(?:(?<=\\)\n[^\n]*)*", re.MULTILINE)
_MACRO = re.compile(r"#\s*define\s+(\w+)")
_SCOPE = re.compile(r"(?:inline\s+)?namespace\b|extern\s+\"")
# A macro without a semicolon in front of a namespace, which is not a function's body.
_PRAGMA = re.compile(r"(?:[A-Z][A-Z0-9_]*\s*\([^()]*\)\s*)+(?=(?:inline\s+)?namespace\b)")
_TEMPLATE = re.compile(r"template\s*<")
_TYPE = re.compile(r"(class|struct|union|enum)\b")
_ACCESS = re.compile(r"(?:(?:public|private|protected)\s*:(?!:)\s*)+")
_OPENING, _CLOSING = "([{", ")]}"

Declarations = Mapping[str, tuple[str, ...]]


def declarations(text: str) -> Declarations:
    """The declared names, each with the text of its declarations, without bodies.

    A member of a class is named "Class::member". Names contain no namespaces. The text of an
    enumeration includes its values.
    """
    text = _COMMENT.sub(lambda found: found[1] or " ", text)
    found: dict[str, list[str]] = {}
    for directive in _DIRECTIVE.findall(text):
        if macro := _MACRO.match(directive.strip()):
            found.setdefault(macro[1], []).append(_plain(directive.replace("\\\n", " ")))
    for name, declaration in _scope(_DIRECTIVE.sub("", text), ""):
        found.setdefault(name, []).append(declaration)
    return {name: tuple(sorted(_own(texts))) for name, texts in found.items()}


def _own(texts: list[str]) -> set[str]:
    """Without using-declarations, if the name is also declared here."""
    own = {text for text in texts if not re.fullmatch(r"using [\w:]+", text)}
    return own or set(texts)


def _scope(text: str, prefix: str) -> Iterator[tuple[str, str]]:
    for head, body in _statements(text):
        before = _ACCESS.match(head) or _PRAGMA.match(head)
        declared = head[before.end() :] if before else head
        if not declared:
            continue
        if body is not None and _SCOPE.match(declared):
            yield from _scope(body, prefix)
            continue
        kind, bare = _kind(declared)
        if kind and body is not None and "(" not in _after_attributes(bare):
            name = _type_name(bare)
            if kind == "enum":
                yield prefix + name, f"{_plain(declared)} {{ {_plain(body)} }}"
            else:
                yield prefix + name, _plain(declared)
                yield from _scope(body, f"{prefix}{name}::")
        elif not (kind and body is None and re.fullmatch(r"[\w\s]+", bare)):
            signature = _signature(declared)
            name = _name(signature)
            if name:
                yield prefix + name, _plain(signature)


def _statements(text: str) -> Iterator[tuple[str, str | None]]:
    """The text of each statement up to its end or its braces, and the content of the braces."""
    start = at = 0
    while at < len(text):
        char = text[at]
        if char == ";":
            yield text[start:at].strip(), None
            start = at = at + 1
        elif char == "{":
            end = _matching(text, at)
            if re.match(r"\s*[,{]", text[end + 1 :]):
                at = end + 1  # a member in a constructor's initializers
                continue
            head = text[start:at].strip()
            yield head, text[at + 1 : end]
            start = at = end + 1
            # After an initializer in braces, or a type with a variable, the statement goes on.
            rest = re.match(r"\s*(?:\w[\w\s,]*)?;", text[start:])
            if rest and not re.match(r"\s*\w+\s+\w", rest[0]):
                start = at = start + rest.end()
        elif char in "([":
            at = _matching(text, at) + 1
        elif char in "\"'":
            at = _string_end(text, at)
        else:
            at += 1


def _matching(text: str, at: int) -> int:
    """The index of the bracket that closes the one at ``at``, or the length of the text."""
    depth = 0
    while at < len(text):
        char = text[at]
        if char in "\"'" and not (char == "'" and text[at - 1].isalnum()):
            at = _string_end(text, at)
            continue
        depth += (char in _OPENING) - (char in _CLOSING)
        if depth == 0:
            return at
        at += 1
    return len(text)


def _string_end(text: str, at: int) -> int:
    quote = text[at]
    at += 1
    while at < len(text) and text[at] not in (quote, "\n"):
        at += 2 if text[at] == "\\" else 1
    return at + 1


def _kind(head: str) -> tuple[str, str]:
    """The keyword if a type is defined (otherwise ""), and the head without ``template<...>``."""
    bare = head
    while _TEMPLATE.match(bare):
        bare = bare[_angle_end(bare, bare.index("<")) :].strip()
    found = _TYPE.match(bare)
    return (found[1], bare) if found else ("", bare)


def _angle_end(text: str, at: int) -> int:
    depth = 0
    while at < len(text):
        if text[at] == "(":
            at = _matching(text, at) + 1
            continue
        depth += (text[at] == "<") - (text[at] == ">" and text[at - 1] != "-")
        at += 1
        if depth == 0:
            break
    return at


def _after_attributes(head: str) -> str:
    return re.sub(r"(alignas|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)", "", head)


def _type_name(head: str) -> str:
    before_bases = re.split(r"(?<!:):(?!:)", _after_attributes(head))[0]
    before_bases = re.sub(r"<.*>", "", before_bases, flags=re.DOTALL)
    words = [word for word in re.findall(r"\w+", before_bases) if word != "final"]
    return words[-1] if len(words) > 1 else ""


def _signature(head: str) -> str:
    """A constructor without its initializers; anything else unchanged."""
    at = _parameters(head)
    if at is None:
        return head
    end = _matching(head, at) + 1
    return head[:end] + re.split(r"(?<!:):(?!:)", head[end:])[0].rstrip()


def _parameters(head: str) -> int | None:
    """The index of the parenthesis that opens a function's parameters, if there is one."""
    at = 0
    while at < len(head):
        if head[at] == "(":
            if re.search(r"\b(alignas|__attribute__|decltype|noexcept|requires)\s*$", head[:at]):
                at = _matching(head, at)
            elif head[:at].rstrip().endswith("operator"):
                at += 1  # operator()
            else:
                return at
        elif head[at] == "=" and "operator" not in head[:at]:
            return None
        elif head[at] == "<" and not re.search(r"operator\s*<?$", head[:at]):
            at = _angle_end(head, at)
            continue
        at += 1
    return None


def _name(head: str) -> str:
    """The name that is declared: of a function, a variable or an alias."""
    if alias := re.match(r"(?:template\s*<.*?>\s*)?using\s+(\w+)\s*=", head, re.DOTALL):
        return alias[1]
    if taken := re.match(r"using\s+(?!namespace\b)[\w:]*?(\w+)$", head):
        return taken[1]
    if re.match(r"(using|friend|static_assert|template\s+(class|struct))\b", head):
        return ""
    if pointer := re.match(r"typedef\b.*\(\s*\*\s*(\w+)\s*\)\s*\(", head, re.DOTALL):
        return pointer[1]
    at = _parameters(head)
    if at is not None:
        found = re.search(r"(operator\s*\S+|operator\s+[\w:]+|~?\w+)\s*$", head[:at])
        return found[1] if found else ""
    before = re.split(r"(?<![=<>!])=(?!=)|(?<!:):(?!:)", head)[0]
    before = re.sub(r"\[[^\]]*\]\s*$", "", before.strip())
    found = re.search(r"(\w+)\s*$", before)
    return found[1] if found else ""


def _plain(text: str) -> str:
    text = " ".join(text.split()).removesuffix("=").rstrip()
    text = text.replace("override final", "final")
    return re.sub(r"\( ", "(", re.sub(r" \)", ")", text))
