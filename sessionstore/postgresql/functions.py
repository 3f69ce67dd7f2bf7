"""The functions that our statements on PostgreSQL call, and the index of words. The migrations create them, in this order.

Each stands alone: a dump that is restored creates the index while nothing but PostgreSQL's own functions can be found by name.
"""

LONGEST_CONTENT = 256 * 1024
# An index entry may have 2,700 bytes at most. Who looks for a longer word finds it by its beginning.
LONGEST_WORD = 64
UNSAID = ("type", "id", "role", "data", "signature", "tool_call_id", "tool_use_id", "call_id")
"""Keys under which a program has put words for programs."""

# JSON may spell characters that no text here can have: a zero, and half of a pair. A backslash is spelled otherwise first, so
# that what looks like such a spelling is one.
_SPEAKABLE = r"regexp_replace(replace({}, '\\', '\u005c'), '\\u(0000|[dD][89a-fA-F][0-9a-fA-F]{{2}})', '{}', 'g')"
_UNSPEAKABLE = r"{} ~ '\\u(0000|[dD][89a-fA-F])'"


def _clean(instead: str) -> str:
    return f"CASE WHEN {_UNSPEAKABLE.format('content')} THEN {_SPEAKABLE.format('content', instead)} ELSE content END"


# What nobody can ask for, since names and titles have no such character; and, for words, what parts them.
_COMPARED, _READ = _clean(r"\u0001"), _clean(" ")

# "Any case" means everybody's letters, whatever the database's own locale. Not every build has ICU.
LOWER = """
CREATE FUNCTION sessionstore_lower(content text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
AS $$ SELECT lower(content COLLATE "und-x-icu") $$"""
JSON = f"""
CREATE FUNCTION sessionstore_json(content text) RETURNS json LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
AS $$ SELECT ({_COMPARED})::json $$"""
IS_JSON = """
CREATE FUNCTION sessionstore_is_json(content text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE STRICT
AS $$ BEGIN PERFORM content::json; RETURN true; EXCEPTION WHEN others THEN RETURN false; END $$"""

# At least as generous as the tokenizer that has the last word (`matching`): no letter's case, accent or final form counts.
# Up and down again: there are small letters that share their capital. (The capital of ß is older than its own small letter.)
_SHARP = r"translate(normalize(said, NFD), U&'\1E9E', U&'\00DF')"
_FOLDED = rf"""translate(lower(upper({_SHARP} COLLATE "und-x-icu")), U&'\03C2', U&'\03C3')"""
# The marks that the tokenizer takes for a part of their letter; others part words (fts5_unicode2.c: two bit masks from U+0300).
_MARKS = "".join(f"\\u{0x300 + bit:04X}" for bit in range(50) if (0x000361F8 << 32 | 0x08029FDF) >> bit & 1)
_PLAIN = rf"regexp_replace({_FOLDED}, '[{_MARKS}]', '', 'g')"
_UNSAID = ", ".join(f"'{key}'" for key in UNSAID)
WORDS = rf"""
CREATE FUNCTION sessionstore_words(content text) RETURNS text[] LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
AS $$
DECLARE document json; said text;
BEGIN
    document := ({_READ})::json;
    IF json_typeof(document) = 'string' THEN
        said := document #>> '{{}}';
    ELSE
        WITH RECURSIVE tree (key, value) AS (
            SELECT ''::text, document
            UNION ALL
            SELECT member.key, member.value FROM tree, LATERAL (
                SELECT each.key, each.value
                FROM json_each(CASE WHEN json_typeof(tree.value) = 'object' THEN tree.value END) each
                UNION ALL
                SELECT '', element.value
                FROM json_array_elements(CASE WHEN json_typeof(tree.value) = 'array' THEN tree.value END) element
            ) member
        )
        SELECT string_agg(value #>> '{{}}', ' ') INTO said FROM tree
        WHERE json_typeof(value) = 'string' AND key NOT IN ({_UNSAID});
    END IF;
    RETURN ARRAY(
        SELECT DISTINCT left(word, {LONGEST_WORD}) COLLATE "C"
        FROM regexp_split_to_table({_PLAIN} COLLATE "und-x-icu", '[^[:alnum:]]+') word WHERE word <> ''
    );
END $$"""

FUNCTIONS = {
    "FUNCTION sessionstore_lower": LOWER,
    "FUNCTION sessionstore_json": JSON,
    "FUNCTION sessionstore_is_json": IS_JSON,
    "FUNCTION sessionstore_words": WORDS,
}
SEARCHED = f"m.status IN ('complete', 'interrupted') AND length(m.content) <= {LONGEST_CONTENT}"
"""Which messages can be found, in the words of their index."""
INDEX = {
    "INDEX ix_messages_words": "CREATE INDEX ix_messages_words ON messages USING gin (sessionstore_words(content))"
    f" WHERE {SEARCHED.replace('m.', '')}"
}
