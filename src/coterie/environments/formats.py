"""The pool of formats that agents are asked to speak in, in the first iteration.

Optima (arXiv 2410.08115, section 3.1) draws a format for each dialogue, so that there is variety to
select from; the instruction is dropped from the training rows.
"""

FORMATS: tuple[str, ...] = (
    "Write only facts with arrows, such as: Lima -> capital of -> Peru.",
    "Write key = value pairs, one to a line.",
    "Write rows of a table with | between the cells; the first row names the columns.",
    "Write JSON objects with short keys and nothing around them.",
    "Write like function calls: ask(x), tell(x, y), sure(y).",
    "Write a bullet list, at most six words to a bullet.",
    "Write telegrams: no articles, no filler, STOP between statements.",
    "Write triples in brackets: (subject, relation, object).",
    "Number your statements, and refer to your partner's by number.",
    "Write YAML with two levels at most.",
    "Write a tree: indent what belongs to the line above it.",
    "Abbreviate every name to its initials after its first mention.",
    "Write logic: AND, OR, NOT, => and names, nothing else.",
    "Begin each line with ? for what you need and ! for what you know.",
    "Write equations between names, and put a question mark in place of what is unknown.",
    "Write one line of tags, such as #film #1994 #director=Lee.",
    "Quote only the few words of your notes that matter, each in quotation marks.",
    "Write queries like SQL, and answer with values only.",
    "Write paths with slashes: person/born/city.",
    "Answer in one sentence of at most fifteen words.",
    "Draw a timeline: year: event; year: event.",
    "Write set notation: A = {x, y}; say what is in both sets.",
)
