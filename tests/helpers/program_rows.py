"""Rows of programming contests and of mathematics, in upstream's formats, for tests."""

import json
from typing import Any

LIVE: dict[str, Any] = {
    "question_title": "Sum", "question_content": "Read two numbers. Print their sum.", "question_id": "abc_1",
    "platform": "atcoder", "difficulty": "easy", "contest_date": "2024-08-21T00:00:00", "starter_code": "",
    "metadata": "{}",
    "public_test_cases": json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]),
    "private_test_cases": json.dumps([{"input": "40 2\n", "output": "42\n", "testtype": "stdin"}]),
}  # fmt: skip
METHOD: dict[str, Any] = {
    **LIVE, "question_id": "2001", "platform": "leetcode", "question_content": "Add the numbers of a list.",
    "starter_code": "class Solution:\n    def total(self, xs: List[int]) -> int:\n        ",
    "metadata": json.dumps({"func_name": "total"}),
    "public_test_cases": json.dumps([{"input": "[1, 2]", "output": "3", "testtype": "functional"}]),
    "private_test_cases": json.dumps([{"input": "[]", "output": "0", "testtype": "functional"}]),
}  # fmt: skip
CODE_CONTESTS: dict[str, Any] = {
    "name": "1_A", "description": "Read two numbers. Print their sum.", "difficulty": 7, "source": 2,
    "public_tests": {"input": ["1 2\n"], "output": ["3\n"]}, "private_tests": {"input": ["40 2"], "output": ["42"]},
    "generated_tests": {"input": ["0 0"], "output": ["0"]},
}  # fmt: skip
EXAMS: dict[str, dict[str, Any]] = {
    "aime24": {"id": 60, "problem": "What is 102 doubled?", "solution": "S", "answer": "204", "year": "2024"},
    "aime25": {"id": "0", "problem": "What is 35 doubled?", "answer": 70},
    "amc23": {"id": 3, "question": "What is 9 cubed over 27?", "answer": 27.0},
    "math500": {
        "problem": "Half of 1?", "answer": r"\frac12", "solution": "So.", "subject": "Algebra", "level": 2,
        "unique_id": "test/a/7.json",
    },
    "olympiadbench": {
        "id": 1606, "question": "Solve $x^2 - 3x + 2 = 0$.", "solution": ["S1"], "final_answer": ["1", "2"],
        "subfield": "Algebra", "difficulty": "Competition", "image_1": None,
    },
}  # fmt: skip
RIGHT = {
    "aime24": "204", "aime25": r"\boxed{70}", "amc23": "$27.0$",
    "math500": r"\boxed{\frac{1}{2}}", "olympiadbench": r"\boxed{2, 1}",
}  # fmt: skip
"""An answer to each of the exams."""
PROGRAM_TRACES = [
    {
        "instruction": "Write a program.\n\nQuestion: Print the number that you read, and one.", "input": "",
        "output": "<plan>T1: try</plan>" + "".join(
            f"<think>{n}</think><code>print({n})</code><observation>\n{n}\n</observation>\n\n<reflection>so</reflection>"
            for n in range(5)
        ) + "<think>done</think><answer>\n```py\nprint(int(input()) + 1)\n```\n</answer>",
    }
]  # fmt: skip
"""A file of traces in GAP's form, with as many calls as a trace has at least."""
CODEFORCES: dict[str, Any] = {
    "id": "852/A", "title": "Digits", "description": "Split it.", "input_format": "A number.", "output_format": "Two.",
    "interaction_format": None, "note": "Any two.", "examples": [{"input": "4\n", "output": "1 3\n"}],
    "official_tests": [{"input": "4\n", "output": "1 3\n"}, {"input": "2\n", "output": "1 1\n"}],
    "official_tests_complete": True, "input_mode": "stdio", "rating": 800,
    "generated_checker":
        "import sys\na, b, c = (open(name).read().split() for name in sys.argv[1:])\n"
        "print(int(sum(map(int, c)) == int(a[0])))\n",
}  # fmt: skip
HUMANEVAL: dict[str, Any] = {
    "task_id": "HumanEval/0", "prompt": "import math\n\ndef twice(x):\n    \"\"\"Double it.\"\"\"\n",
    "entry_point": "twice", "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-1) == -2\n",
}  # fmt: skip
