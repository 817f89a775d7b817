"""The signature of a thinking block in Anthropic's API: it brings back the reasoning that the block
does not show. Nothing is encrypted, as other clients are shown the reasoning in clear."""

import base64
import binascii

_PREFIX = "antiphon-"


def signature_of(hidden: str) -> str:
    """The signature of a block that hides this reasoning, if any."""
    return _PREFIX + base64.b64encode(hidden.encode()).decode()


def hidden_reasoning(signature: str) -> str:
    """The inverse of `signature_of`; nothing is hidden in a signature that somebody else made."""
    if not signature.startswith(_PREFIX):
        return ""
    try:
        return base64.b64decode(signature.removeprefix(_PREFIX), validate=True).decode()
    except (binascii.Error, UnicodeError):
        return ""
