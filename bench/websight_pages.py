"""Web pages in the style of WebSight, generated from a seed: Tailwind 2 classes, sentences and placeholder images."""

import random

COLORS = ("blue", "green", "red", "indigo", "purple", "pink", "yellow", "gray")
BUSINESSES = (
    "bakery",
    "law firm",
    "bookshop",
    "gym",
    "garden center",
    "travel agency",
    "clinic",
    "winery",
)
SENTENCES = (
    "We have served our town for more than twenty years.",
    "Our team listens first and then finds a plan that fits your budget.",
    "Visit us on weekdays between nine and six, or write to us at any time.",
    "Every order is packed by hand and leaves our house on the same day.",
    "Members get early access to new courses and a discount on all events.",
    "Quality, patience and good humor are the three rules of our workshop.",
)  # fmt: skip
LINK = "https://cdn.jsdelivr.net/npm/tailwindcss@2.2.19/dist/tailwind.min.css"


def make_page(seed: int) -> str:
    """Return the HTML of a page with a navigation bar, a hero, cards or a form, and a footer."""
    rng = random.Random(seed)
    main, other = rng.sample(COLORS, 2)
    business, shade = rng.choice(BUSINESSES), rng.choice((500, 600, 700, 800))
    text = lambda count: " ".join(rng.choices(SENTENCES, k=count))  # noqa: E731
    links = "".join(
        f'<a href="#" class="text-white hover:text-{main}-200 px-3">{name}</a>'
        for name in rng.sample(("Home", "About", "Services", "Contact", "Blog", "Team"), 4)
    )
    size = f"{rng.choice((300, 400, 600))}x{rng.choice((200, 300, 400))}"
    image = (
        f'<img src="https://source.unsplash.com/random/{size}/?{business.split()[0]}" alt="{business}" '
        'class="w-full h-48 object-cover rounded-t-lg">'
    )
    cards = "".join(
        f'<div class="bg-white rounded-lg shadow-md overflow-hidden">{image if rng.random() < 0.6 else ""}'
        f'<div class="p-6"><h3 class="text-xl font-semibold text-{other}-{shade} mb-2">'
        f"{rng.choice(BUSINESSES).title()}</h3>"
        f'<p class="text-gray-600 text-sm leading-relaxed">{text(2)}</p></div></div>'
        for _ in range(rng.randint(2, 6))
    )
    form = (
        '<form class="max-w-lg mx-auto bg-white p-8 rounded shadow">'
        '<input class="w-full border rounded px-3 py-2 mb-4" placeholder="Your name">'
        '<textarea class="w-full border rounded px-3 py-2 mb-4" rows="4"></textarea>'
        f'<button class="bg-{main}-{shade} hover:bg-{main}-700 text-white font-bold py-2 px-4 rounded">Send</button>'
        "</form>"
    )
    return f"""<html>
<link href="{LINK}" rel="stylesheet">
<body class="bg-{rng.choice(("gray", other))}-100 font-sans leading-normal tracking-normal">
<nav class="flex items-center justify-between flex-wrap bg-{main}-{shade} p-6">
<span class="font-semibold text-xl text-white tracking-tight">{business.title()}</span><div>{links}</div></nav>
<header class="container mx-auto text-center py-{rng.choice((8, 12, 20))} px-4">
<h1 class="text-{rng.choice(("3xl", "4xl", "5xl"))} font-bold text-gray-{shade}">Welcome to our {business}</h1>
<p class="text-lg text-gray-700 mt-4 max-w-2xl mx-auto">{text(3)}</p>
<a href="#" class="inline-block mt-6 bg-{other}-500 text-white py-2 px-6 rounded-full">Read more</a></header>
<main class="container mx-auto grid grid-cols-1 md:grid-cols-{rng.choice((2, 3))} gap-{rng.choice((4, 6, 8))} p-4">
{cards}</main>
{form if rng.random() < 0.4 else ""}
<footer class="bg-gray-800 text-white text-center p-6 mt-8"><p>&copy; 2023 {business.title()}. {text(1)}</p></footer>
</body>
</html>
"""
