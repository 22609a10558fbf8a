r"""When two answers in LaTeX are the same: on typed pairs, and on the MATH rows that ship."""

import time
from pathlib import Path

import pytest

from coterie.environments import grading
from coterie.environments.grading import same_mathematics, spelling
from coterie.environments.qa_metrics import gold_answer
from coterie.tools import line_process
from tests.helpers.packaged_environments import packaged_dialogue

EQUAL = [
    (r"\{1,2\}", r"\{2, 1\}"), (r"\{1,2\}", "2,1"), ("1,2", "2, 1"), ("1, 1, 2", "2,1,1"),
    ("(1,2)", r"\left( 1, 2 \right)"), ("(1,2)", r"(\frac{2}{2}, 2)"), ("(0,1]", r"\left(0, 1\right]"),
    ("(1,2);(3,4)", "(3, 4), (1, 2)"), (r"x \in [-2,7]", "[-2,7]"), ("(1,2)", "(x, y) = (1, 2)"), ("50", "50%"),
    (r"32 \%", r"32\%"), (r"\frac12", ".5"), ("24_{10}", "24"), ("1,234", "1234"), (r"10,\!080", "10080"),
    (r"11,\! 111,\! 100", "11111100"), ("100, 200", "200, 100"), ("1,234, 5", "5, 1234"),
    (r"-12 \text{ or } -30", "-30, -12"), ("2,3", r"x=2 \text{ or } x=3"),
    (r"1 \pm \sqrt{19}", r"1-\sqrt{19}, 1+\sqrt{19}"), ("AB=9, CD=4", "CD = 4, AB = 9"), ("AB=9, CD=4", "9, 4"),
    ("k=3", "3"), ("5", "x = 5"), ("5", r"\sqrt{25} = 5"), ("y = x+3", "y - 3 = x"), ("y = x+3", "x = y-3"),
    ("x+1", "1+x"), (r"\log_{10} 100", "2"), ("2xy", "2yx"), (r"\mathbb{R}", r"(-\infty,\infty)"),
    (r"5\text{ m}", r"5\text{ m in total}"), (r"1.2\overline{34}", r"\frac{611}{495}"),
    (r"8\sqrt{3} \text{ square inches}", r"8\sqrt3"), (r"\text{(E)},", "E"), (r"\text{Friday}", "friday"),
    (r"440\text{ cm}^2", "440"), ("440", "440 cm"), ("440", "440cm"), ("440", "440 apples"), (r"18^\circ C", "18"),
    ("3s^2", "3 s^2"), (r"\frac{1}{4m}", r"\dfrac{1}{4m}"), (r"18^\circ", "18"), ("18", "**18**"),
    ("18", r"\boxed{18}"), (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    (r"2+\sqrt{7}", r"\sqrt7+2"),
]  # fmt: skip
DIFFERENT = [
    ("(1,2)", r"\{1,2\}"), ("(1,2)", "[1,2]"), ("(2,3)", "(2,3]"), ("(1,2)", "1,2"), ("2,1", "(1,2)"),
    ("1,1,2", "1,2"), ("1,1,2", "1,2,2"), ("1,2,3", "1,2"), ("2", "1,2"), ("1,2,3", "123"), ("(12,345)", "12345"),
    ("AB=9, CD=4", "4, 9"), ("AB=9, CD=4", "AB=4, CD=9"), ("5000", r"50\%"), ("1011_2", "1011_3"),
    ("4210_5", "4210_{6}"), ("11", "5 6"), ("11", r"5 \quad 6"), ("11", "5 (6)"), ("5", r"5 \text{ (not 6)}"),
    ("5", "6 = 5"), ("5", r"x \approx 5"), ("5", r"x \neq 5"), ("5", "5 or 6"), ("5", r"\pm 5"), ("5", "5?"),
    ("5", "about 5"), (r"8\sqrt3", r"8\sqrt3 \text{ or so}"), (r"8\sqrt3", r"8\sqrt3 maybe"),
    (r"8\sqrt3", r"8\sqrt3 \text{ maybe}"), (r"8\sqrt3", r"8\sqrt3 \text{ million}"), ("A", "a"), ("x", "y"),
    ("3s^2", "3"), (r"\frac{1}{4m}", "0.25"), ("18", "18ab"), ("18", "18xy"), ("x=5", "x=5m"), ("3, 4", "3a, 4"),
    (r"\frac13", "0.33"), ("5", "6"), ("e^{100}", "e^{100}+1"), ("0", "10^{-400}"),
    (r"\sqrt{2}", r"\sqrt{2}+10^{-14}"), ("x=5", "y=5"), (r"\{\}", "()"), ("5", ""),
]  # fmt: skip

MORE_EQUAL = r"""
\frac{1}{2} | 0.5 ;; \frac{2}{4} | \frac{1}{2} ;; \dfrac{1}{3} | \tfrac13 ;; \frac{22}{7} | 3\frac{1}{7}
-\frac{3}{4} | \frac{-3}{4} ;; \frac{3}{4} | 3/4 ;; \frac{\sqrt{2}}{2} | \frac{1}{\sqrt{2}}
\frac{1}{1+\sqrt{2}} | \sqrt{2}-1 ;; 50\% | 0.5 ;; 50\% | 50 ;; 50\% | \frac{1}{2} ;; 12.5\% | \frac{1}{8}
150\% | 1.5 ;; (0,1] | (0, 1] ;; (-\infty,-1)\cup(1,\infty) | (1,\infty)\cup(-\infty,-1) ;; [1,2]\cup[2,3] | [1,3]
x \in [0,2] | [0,2] ;; \{1,2,3\} | \{3,2,1\} ;; \{1,2,3\} | 1,2,3 ;; \emptyset | \{\} ;; 1,2 | 2,1
\left\{\frac12, 3\right\} | \{3, 0.5\} ;; (1,2) | (1,2) ;; (1,2,3) | (1,2,3.0) ;; (\frac12, \sqrt{4}) | (0.5,2)
(1,2) | \left(1, 2\right) ;; (2,3) | x=2,\ y=3
\begin{pmatrix}1&2\\3&4\end{pmatrix} | \begin{bmatrix}1&2\\3&4\end{bmatrix}
\begin{pmatrix}\frac12\\0\end{pmatrix} | \begin{pmatrix}0.5\\0\end{pmatrix} ;; 5\text{ cm} | 5
5\text{ cm} | 5\text{ centimeters} ;; 5\text{ cm}^2 | 5\text{ square cm} ;; 10\text{ inches} | 10\text{ in}
60\text{ mph} | 60 ;; 8\sqrt{3}\text{ cm} | 8\sqrt{3} ;; \text{Monday} | monday ;; \text{(C)} | C ;; A | A
\text{Yes} | yes ;; 90^\circ | 90 ;; 90^\circ | 90\text{ degrees} ;; 45^{\circ} | 45^\circ
1\frac{1}{2} | \frac{3}{2} ;; 1\frac{1}{2} | 1.5 ;; -2\frac{1}{4} | -2.25 ;; 1.5 \times 10^3 | 1500
1.5 \times 10^{-3} | 0.0015 ;; 6.02 \cdot 10^{23} | 6.02 \times 10^{23} ;; 10^6 | 1000000 ;; x=5 | 5
y = 2x+1 | y-1 = 2x ;; f(x)=x^2 | x^2 ;; x=2 \text{ or } x=3 | \{2,3\} ;; x^2+y^2=25 | y^2 + x^2 = 25 ;; x > 3 | 3 < x
a<b | b>a ;; \$18 | 18 ;; \$18.00 | 18 ;; \$18 | 18\text{ dollars} ;; \$1,250 | 1250 ;; 1,000 | 1000
1,000,000 | 10^6 ;; 12{,}345 | 12345 ;; 10,\!000 | 10000 ;; \sqrt{50} | 5\sqrt{2} ;; \sqrt[3]{8} | 2 ;; 2^{10} | 1024
\log_2 8 | 3 ;; \ln e^2 | 2 ;; \sin\frac{\pi}{6} | 0.5 ;; \cos \pi | -1 ;; 2+3i | 3i+2 ;; |{-5}| | 5
\binom{5}{2} | 10 ;; 5! | 120 ;; \pi | 3.14159265358979 ;; 2\pi | \pi \cdot 2 ;; \sqrt{2} | 1.41421356237309504880
\infty | +\infty ;; \ln|x|+C | C+\ln|x| ;; \log 100 | 2 ;; (1,2)\cup[3,4] | [3,4]\cup(1,2)
(0,1)\cup(1,2) | (0,2)\setminus\{1\} ;; x<1 \text{ or } x>2 | x>2 \text{ or } x<1 ;; (a+b)^2 | a^2+2ab+b^2
x^2-1 | (x-1)(x+1) ;; 2(x+3) | 2x+6 ;; \frac{x^2-1}{x-1} | x+1 ;; n(n+1)/2 | \frac{n^2+n}{2}
\sin^2 x + \cos^2 x | 1 ;; a^2b | ba^2 ;; 2516_8 | 2516 ;; 1011_{2} | 1011_2 ;; 3:4 | \frac34 ;; 5 \pm 2 | 7, 3
0 | -0 ;; \log_2 3 | \frac{\ln 3}{\ln 2} ;; 2516 | 2516_8 ;; 3ab | 3ba ;; \frac{1}{2}ab | \frac{ab}{2}
2√3 | 2\sqrt{3} ;; x²+1 | x^2+1 ;; (2,3) | y=3, x=2 ;; 7 | 7. ;; \begin{pmatrix}-7\\16\\5\end{pmatrix} | (-7,16,5)
[0,1) | 0 \le x < 1 ;; (-\infty,3) | x < 3 ;; (-\infty,-1)\cup(1,\infty) | x<-1 \text{ or } x>1 ;; (2,5) | 2 < x < 5
x \geq 5 | [5,\infty) ;; (-\infty,1)\cup(2,\infty) | x>2 \lor x<1 ;; (1,2)\cup(3,4) | 3<x<4 \text{ or } 1<x<2
-1 | e^{i\pi} ;; e^{i \pi}+1 | 0 ;; e^{2\pi i} | 1 ;; i^2 | -1 ;; \sqrt{-4} | 2i ;; (1+i)^2 | 2i ;; \frac{1}{i} | -i
|3+4i| | 5 ;; \frac{-1+i\sqrt3}{2} | e^{2\pi i/3} ;; \text{A and B} | A, B ;; \text{A and B} | \text{B and A}
\text{A, B, and C} | C, B, A ;; \text{A or B} | A, B ;; \text{Alice and Bob} | \text{Bob, Alice}
\text{(A), (B)} | A, B ;; \text{3,000 dollars} | 3000 ;; \lg 1000 | 3 ;; \lg 2 + \lg 5 | 1
\lg 2 | \frac{\ln 2}{\ln 10} ;; \lg x | \log_{10} x ;; \ln 2 | \log_e 2 ;; 0.\overline{3} | \frac{1}{3}
0.1\overline{6} | \frac16 ;; \sin 30^\circ | \frac12 ;; 12.5\% | 12.5 ;; 33\frac{1}{3}\% | \frac{1}{3}
x = \frac{-1 \pm \sqrt{5}}{2} | \frac{-1+\sqrt5}{2}, \frac{-1-\sqrt5}{2}
"""
MORE_DIFFERENT = r"""
\frac{22}{7} | \pi ;; 50\% | 5 ;; 0.5 | 0.5\% ;; 5\% | 0.5 ;; (0,1) | (0,1] ;; (-\infty,3) | x \leq 3 ;; 2 3 | 23
(2,5) | (5,2) ;; [2,5] | [2,6] ;; \{1,2\} | \{1,3\} ;; (1,2) | (2,1)
\begin{pmatrix}1&2\\3&4\end{pmatrix} | \begin{pmatrix}1&2\\3&5\end{pmatrix}
\begin{pmatrix}1\\2\end{pmatrix} | \begin{pmatrix}1&2\end{pmatrix}
\begin{pmatrix}-7\\16\\5\end{pmatrix} | (-7,16,6)
\begin{pmatrix} 2^{-99} & 0\end{pmatrix} | \begin{pmatrix} 2^{-98} & 0\end{pmatrix} ;; \text{even} | \text{odd}
\text{(C)} | D ;; A | B ;; \text{Yes} | no ;; 98.6^\circ F | 98.6^\circ C
1\frac{1}{2} | \frac{1}{2} ;; 1.5 \times 10^3 | 1.5 \times 10^4 ;; x = 5 | y = 5 ;; x=5 | x=6 ;; y = 2x+1 | y = 2x+2
x > 3 | x \ge 3 ;; x>3 | y>3 ;; 1,2 | 12 ;; 2+3i | 2-3i ;; \pi | 3.14159 ;; \infty | -\infty ;; x^2-1 | (x-1)^2
11 | 1011_2 ;; 5 \text{ or } 6 | 5 ;; 5 | 5 \text{ or } 6 ;; \text{A and B} | \text{A and C}
\text{A and B} | \text{B} ;; \text{yes and no} | \text{yes} ;; 5 | 5i ;; i | 1 ;; 1+i | 1-i ;; \lg 8 | 3
\log 100 | \ln 100 ;; (-\infty,1)\cup(2,\infty) | (-\infty,1]\cup(2,\infty) ;; 5 | \approx 5 ;; e^{-30} | e^{-31}
1-e^{-60} | 1 ;; \frac{1}{2^{50}} | 0 ;; \frac{1}{2^{50}} | \frac{7}{2^{50}} ;; \frac{3}{10^{13}} | \frac{1}{10^{13}}
1-\frac{1}{2^{60}} | 1 ;; (2,3) | x=3, y=2 ;; \frac{1}{3} | 0.333333333 ;; \{1,2\} | \{1,2,2\} ;; C+x | c+x
x+C | X+C ;; 2516_8 | 2516_9 ;; 5\text{ cm} | 5\text{ m} ;; 3\text{ hours} | 3\text{ minutes}
8\sqrt{3}\text{ cm} | 8\sqrt{3}\text{ m} ;; 30^\circ | 30\text{ radians} ;; \$5 | 5\text{ cents} ;; 5 | 5m
2\times 10^{-20} | 3\times 10^{-20} ;; \frac{1}{2004!} | \frac{1}{2006!} ;; \frac{1}{2^{99}} | \frac{1}{2^{98}}
\left(\frac{1}{3}\right)^{40} | \left(\frac{1}{3}\right)^{41} ;; \frac{\binom{20}{3}}{2^{80}} | \frac{1}{2^{80}}
"""


MATRICES = {
    "#1": r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
    "#2": r"\begin{pmatrix}0&1\\1&0\end{pmatrix}",
}
AS_MATH_VERIFY = {True: r"""
2:3 | \frac{2}{3} ;; 4:6 | \frac{2}{3} ;; 1:1 | 1 ;; a:b | 2a:2b ;; AB | BA ;; A \cdot B | BA
#1#2 | \begin{pmatrix}2&1\\4&3\end{pmatrix}
\begin{pmatrix}2&4\\6&8\end{pmatrix} | 2#1 ;; A | (A) ;; \text{(B)} | B
x#1 | #1x ;; \begin{vmatrix}1&2\\3&4\end{vmatrix} | -2
60^\circ | 60 ;; 50^\circ+10^\circ | 60^\circ ;; A^{-1}B | A^{-1} B
""", False: r"""
2:3 | 3:2 ;; 4:6 | 0.6667 ;; 1:2:3 | 1:2:4 ;; (4,6) | (2,3) ;; 3:30 | 7 ;; \frac{\pi}{3} | 60 ;; \pi | 180
#1#2 | #2#1
ABA^{-1} | B ;; 45^\circ | 0.785398163397448 ;; 60^\circ | \frac{\pi}{4} ;; 60^\circ C | \frac{\pi}{3}
\text{(B) }12 | \text{(C) }12 ;; \text{(B) }12 | 13 ;; \text{(B) }12 | C ;; (A) \cup (B) | A 
f(B) 12 | 12 ;; (a) 5 | 5
"""}  # fmt: skip
"""Pairs on which math-verify agrees with us: equal, and different."""
UNLIKE_MATH_VERIFY = {
    "a degree is a number of radians": (True, r"""
\pi/3 | 60^\circ ;; \frac{\pi}{3} | 60\text{ degrees} ;; \frac{\pi}{3}\text{ radians} | 60^\circ ;; 90^\circ | \pi/2
2\pi | 360^{\circ} ;; \frac{\pi}{8} | 22.5^\circ ;; \theta=60^\circ | \theta=\frac{\pi}{3} ;; \frac{\pi}{6} | 30\degree
60^\circ, 120^\circ | \frac{2\pi}{3}, \frac{\pi}{3} ;; (60^\circ, 2) | (\frac{\pi}{3}, 2)"""),
    "an option is its letter and its content": (True, r"""
\text{(B) }12 | 12 ;; \text{(B) }12 | B ;; \text{(B) }12 | \text{(B)} ;; \text{(B)} 12 | 12 ;; (B) 12 | 12
(B)\ 12 | 12 ;; \textbf{(B)}\ 12 | 12 ;; \text{B. }12 | 12 ;; \text{(B) }\frac12 | 0.5 ;; \text{(B) 12} | 12
\text{(E) none of these} | E ;; \text{(C) }\text{Monday} | \text{Monday} ;; (B) -12 | -12 ;; B. 12 | 12"""),
    "a pair of numbers that can be canceled is no ratio without a question": (False, r"""
4:6 | 2:3 ;; 12:30 | 2:5"""),
    "inverse and transpose are of matrices, which do not commute": (False, r"""
A^{-1}B | BA^{-1} ;; A^T B | BA^T ;; #1A | A#1"""),
    "bold letters are read in order": (False, r"\mathbf{A}\mathbf{B} | \mathbf{B}\mathbf{A}"),
    "units and cases of letters differ": (False, r"30^\circ | 30\text{ radians} ;; b | B"),
    "a sine of degrees, and a unit": (True, r"\sin 60^\circ | \frac{\sqrt3}{2} ;; 98.6^\circ F | 98.6"),
    "a ratio of three numbers": (True, r"2:3:4 | 4:6:8"),
}  # fmt: skip
"""Reasons why we disagree with math-verify, with our verdict and pairs, the reference first."""
OF_QUESTIONS = [
    ("What is the ratio of boys to girls?", "4:6", "2:3", True),
    ("What is the ratio of boys to girls?", "2:3", "6:4", False),
    ("Write the odds against it as a:b.", "10:2", "5:1", True),
    ("What was the result of the game?", "4:6", "2:3", False),
    ("What was the result of the game?", "2:3", "4:6", False),
    ("What was the result of the game?", "4:6", "4 : 6", True),
    ("At what time does it start?", "12:30", "12:30", True),
    ("Simplify, for matrices A and B.", "AB", "BA", False),
    ("Simplify, for matrices A and B.", "AB + C", "C + AB", True),
    ("Simplify, for matrices A and B.", "X = 2AB", r"2 A \cdot B", True),
    ("Simplify, for matrices.", "M_1M_2", "M_2M_1", False),
    ("Find the matrix.", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"A = \begin{pmatrix}1&2\\3&4\end{pmatrix}", True),
    ("Which matrices?", r"A = \begin{pmatrix}1\\2\end{pmatrix}, B = 2", r"\begin{pmatrix}1\\2\end{pmatrix}, 2", True),
    ("Which matrix?", "(B) 12", "12", True),
    ("Is the matrix regular?", "Yes", "YES", True),
    ("What is the area of a triangle?", r"\frac12 BH", r"\frac12 HB", True),
]  # fmt: skip

WORDS = "TTH | THT ;; BAC | ABC ;; three | there ;; May | Amy ;; left | felt ;; 5 limes | 5 smile"


def pairs(table: str) -> list[tuple[str, str]]:
    for name, matrix in MATRICES.items():
        table = table.replace(name, matrix)
    lines = table.strip().replace("\n", ";;").split(";;")
    return [(one.strip(), other.strip()) for one, other in (line.split(" | ") for line in lines)]


@pytest.mark.parametrize(
    ("cases", "equal"),
    [
        ((*EQUAL, *pairs(MORE_EQUAL)), True),
        ((*DIFFERENT, *pairs(MORE_DIFFERENT), *pairs(WORDS)), False),
    ],
)
def test_answers_are_equal_or_not_in_either_order(
    cases: list[tuple[str, str]], equal: bool
) -> None:
    for one, other in cases:
        assert same_mathematics(one, other) is equal is same_mathematics(other, one), (one, other)


def test_where_we_follow_math_verify_and_where_not() -> None:
    for equal, table in [*AS_MATH_VERIFY.items(), *UNLIKE_MATH_VERIFY.values()]:
        for gold, answer in pairs(table):
            assert same_mathematics(gold, answer) is equal, (gold, answer)


@pytest.mark.slow
def test_the_verdicts_of_math_verify_are_those_of_the_tables() -> None:
    from math_verify import LatexExtractionConfig, parse, verify

    unlike = [(not equal, table) for equal, table in UNLIKE_MATH_VERIFY.values()]
    for equal, table in [*AS_MATH_VERIFY.items(), *unlike]:
        for texts in pairs(table):
            values = [parse(f"${text}$", [LatexExtractionConfig()]) for text in texts]
            assert verify(*values) is equal, texts


@pytest.mark.parametrize(("question", "gold", "answer", "equal"), OF_QUESTIONS)
def test_the_question_tells_of_ratios_and_matrices(
    question: str, gold: str, answer: str, equal: bool
) -> None:
    assert same_mathematics(gold, answer, question) is equal


def test_the_answers_of_the_rows_that_ship_score_in_honest_dress_only() -> None:
    environment = packaged_dialogue("math")
    for task in environment.tasks("heldout", 100, 0):
        gold = gold_answer(task)
        for honest in (f" {gold}.", rf"${gold}$", rf"\boxed{{{gold}}}", f"**{gold}**"):
            assert environment.score(task, honest) == 1.0, (gold, honest)
        for cheat in (f"{gold} or 9999", f"{gold}, 9999", f"9999, {gold}", f"{gold} = 9999", f"not {gold}",
                      f"about {gold}", f"{gold} 9999", rf"{gold} \text{{ or so}}", rf"\{{{gold}, 9999\}}"):  # fmt: skip
            assert environment.score(task, cheat) == 0.0, (gold, cheat)


def test_one_spelling_of_latex() -> None:
    assert spelling(r"\dfrac{1}{2}") == spelling(r"$\frac12$") == r"\frac{1}{2}"
    assert spelling(r"\left( 3, \frac{\pi}{2} \right)") == r"(3,\frac{\pi}{2})"
    assert spelling(r"\text{Monday}.") == "Monday"
    assert spelling(r"\leftarrow") == r"\leftarrow"
    assert spelling("12{,}345") == "12345"


def test_an_answer_that_takes_too_long_is_wrong_and_the_next_is_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert same_mathematics("7", r"\sqrt{49}")
    monkeypatch.setattr(grading, "LIMIT", 0.3)
    start = time.monotonic()
    assert not same_mathematics("7", "9^{9^{9^{9}}}")
    assert time.monotonic() - start < line_process.START, "given up after the limit"
    monkeypatch.undo()
    assert same_mathematics("7", r"\sqrt[3]{343}"), "by a new process"


def test_an_answer_after_ctrl_c_is_not_taken_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> str:
        raise KeyboardInterrupt

    assert grading.compared(r"\sqrt{25}", "5"), "the process runs"
    with monkeypatch.context() as patch:
        patch.setattr(line_process, "_line", stopped)
        with pytest.raises(KeyboardInterrupt):
            grading.compared(r"\sqrt{36}", "6")
    assert not grading.compared(r"\sqrt{49}", "8")


def test_a_models_answer_is_never_evaluated(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    for text in (f"__import__('os').system('touch {touched}')", f"open('{touched}','w')"):
        assert not same_mathematics("7", text)
        assert not grading.compared("7", text) and not grading.compared(text, "7")
    assert not touched.exists()


@pytest.mark.parametrize("text", ["(" * 900, "1," * 400, "x=" * 400, "\\text{a" * 100, "{(" * 400])
def test_no_text_is_too_much(text: str) -> None:
    assert not same_mathematics("7", text) and same_mathematics(text, text)
