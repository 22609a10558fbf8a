"""Packaged pools of formats for the messages of the first iteration.

Optima (arXiv 2410.08115, section 3.1) samples a format for each dialogue, which gives selection more variety. Training
rows omit the instruction. Debates on mathematics have no pool (appendix H.3). ``environments.format_pool`` reads other
pools from files.
"""

EXCHANGE_FORMATS: tuple[str, ...] = (
    "Write facts with arrows, such as: Lima -> capital of -> Peru.",
    "Write key = value pairs, one to a line.",
    "Write rows of a table with | between the cells; the first row names the columns.",
    "Write JSON objects with short keys.",
    "Write like function calls: ask(x), tell(x, y), sure(y).",
    "Write a bullet list, at most six words to a bullet.",
    "Write telegrams: no articles, no filler, STOP between statements.",
    "Write triples in brackets: (subject, relation, object).",
    "Number your statements, and refer to your partner's by number.",
    "Write YAML with two levels at most.",
    "Write a tree: indent what belongs to the line above it.",
    "Abbreviate every name to its initials after its first mention.",
    "Write logic with names, AND, OR, NOT and =>.",
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

DEBATE_FORMATS: tuple[str, ...] = (
    "Write each step as: premise => conclusion.",
    "Write a table with the columns option | for | against.",
    "Strike out one option a line: not X, because Y.",
    "Write key: value lines with the keys fact, rule, result.",
    "Write a JSON object with the keys facts, steps and choice.",
    "Give each option a score from 0 to 5 and three words why.",
    "Write telegram style: nouns and verbs only, STOP after each step.",
    "Number the steps and refer to them by number instead of repeating them.",
    "Write pseudocode: if ... then ... else ..., one step a line.",
    "Write a chain with arrows: cause -> effect -> effect.",
    "Write a tree: the question, under it the options, under each what speaks for it.",
    "Use the signs + for supports, - for contradicts, ? for unknown, = for follows.",
    "Write a proof by cases, one line to a case.",
    "Ask yourself a short question and answer it in up to five words; three times at most.",
    "Write definitions first (X := ...), then a single line that uses them.",
    "Write YAML: given, wanted, so.",
    "Shorten every option to its first letters, and write about these.",
    "Write three bullets of up to eight words: what is asked, what decides, what follows.",
    "Write set notation: the options that fit the first clue, those that fit the second, what is in both.",
    "Write a rule and the case in one line: all A are B; this is A; so B.",
    "Write inequalities between options: A > B, because of one word.",
    "Write like function calls: known(x), rules_out(x, y), choose(z).",
)
"""For a solver of questions with options, who must show how it got there."""
