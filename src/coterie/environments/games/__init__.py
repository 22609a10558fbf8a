"""Games that agents play: BabyAI, PDDL, TextWorld and ALFWorld."""
