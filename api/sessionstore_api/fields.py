"""The types of single fields, each with what the documentation says about it.

Lengths and alphabets are checked by the library, whose limits are settings; what is said about them here is documentation.
"""

from typing import Annotated, Any

from msgspec import Meta, Raw


def doc(about: str, **schema: Any) -> Meta:
    """What the documentation says about a field."""
    return Meta(description=about, extra_json_schema=schema)


_INSIDE, _OUTSIDE = r"[^/\\\u0000-\u001f\u007f-\u009f]", r"[^\s/\\\u0000-\u001f\u007f-\u009f]"
ID_PATTERN = f"^{_OUTSIDE}({_INSIDE}*{_OUTSIDE})?$"
ID_SCHEMA: dict[str, Any] = {"minLength": 1, "maxLength": 200, "pattern": ID_PATTERN}
TOKEN_SCHEMA: dict[str, Any] = {"minLength": 22, "maxLength": 200, "pattern": "^[\\u0021-\\u007e]+$"}

Id = Annotated[str, doc("1 to 200 characters; no control characters, '/' or '\\'; white space only inside", **ID_SCHEMA)]
Title = Annotated[str, doc("At most 1,000 characters", maxLength=1000)]
Role = Annotated[str, doc("Who says it: user, assistant, tool, …", pattern="^[a-z_]+$", maxLength=40)]
Metadata = Annotated[dict[str, Any], doc("Your own labels")]
MergePatch = Annotated[dict[str, Any], doc("Merged into the metadata (RFC 7396): null removes a key")]
Content = Annotated[Any, doc("Any JSON value; it comes back exactly")]
Moment = Annotated[str, doc("UTC, milliseconds (RFC 3339)", format="date-time")]
Position = Annotated[int, doc("Place in the transcript, from 0", minimum=0)]
Token = Annotated[str, doc("A secret of yours: 22 to 200 visible ASCII characters", **TOKEN_SCHEMA)]
TtlMs = Annotated[int, doc("How long the lease lives without a call of its holder", minimum=1000, maximum=3_600_000)]
Number = Annotated[int, doc("From 1", minimum=1)]
StoredMetadata = Annotated[Raw, doc("Your own labels", type="object")]
StoredContent = Annotated[Raw, doc("What was said, exactly as it was sent")]
StoredUsage = Annotated[Raw, doc("What the turn used, as its holder said it, or null", type=["object", "null"])]
Usage = Annotated[dict[str, Any], doc("What the turn used: tokens, cost, …")]
