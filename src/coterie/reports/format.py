"""How numbers read on a page: a real minus sign, thousands apart, times with their units."""

import math


def number(value: float, digits: int = 0) -> str:
    """``-1234.5`` as ``−1,234.5``; a dash for what is not a number."""
    if not math.isfinite(value):
        return "–"
    text = f"{value:,.{digits}f}"
    return text.lstrip("-") if float(text.replace(",", "")) == 0 else text.replace("-", "−")


def signed(value: float, digits: int = 0) -> str:
    text = number(value, digits)
    return text if text.startswith("−") or not value > 0 else f"+{text}"


def duration(seconds: float) -> str:
    """``7.2 s``, ``3 min 05 s``, ``2 h 14 min``."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"
