"""What the scripted agents of the `persona` micro-world say: sentences for each habit, from terse to long-winded."""

from coterie.environments.persona.choices import Aspect

ASKS: dict[Aspect, tuple[str, ...]] = {
    "keep": (
        "Which numbers are kept?",
        "Which numbers should it keep?",
        "Could you tell me which of the numbers are to be kept?",
    ),
    "change": (
        "How is each number changed?",
        "How should it change a number?",
        "Could you tell me in which way each of the numbers is to be changed?",
    ),
    "order": (
        "In what order?",
        "How should it sort them?",
        "Could you tell me in what order you would like to see the numbers?",
    ),
    "part": (
        "Which part of the list?",
        "Which part should it take?",
        "Could you tell me which part of the list you would like to have?",
    ),
    "give": (
        "What does it give back?",
        "What should it return?",
        "Could you tell me what kind of number it is to give back to you?",
    ),
}
"""Good questions: each is about one aspect."""
BEFORE: tuple[str, ...] = (
    "Good.",
    "Thank you, that helps me.",
    "Let me think about what you wrote before I write any code.",
    "That sounds like a nice little function, and I am glad to help you with it.",
)
"""What may come before a question, from terse to long-winded."""
BEFORE_SHARE = 0.3

THINGS: dict[Aspect, str] = {
    "keep": "which numbers are kept",
    "change": "how each number is changed",
    "order": "in what order they come",
    "part": "which part of the list it takes",
    "give": "what it gives back",
}
"""What a question about several aspects is joined from."""
SEVERAL: tuple[str, ...] = ("Tell me {things}.", "Please let me know {things}, all in one go.")
"""Questions about several aspects at once."""

VAGUE: tuple[str, ...] = (
    "Can you tell me more?",
    "What else should I know?",
    "Could you please explain to me with a few more words what you have in mind?",
    "Is there anything special about this function that I should think of?",
)
"""Questions about nothing in particular."""
THANKS: tuple[str, ...] = (
    "Thank you, now I know all that I need.",
    "Great, I will write the code for you now.",
)
"""Said by an agent that knows all, instead of answering."""
