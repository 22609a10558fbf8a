"""Forms in which frameworks and data sets publish chats, preferences and questions, and what is right for each.

Every form makes ten rows with numbers in place of ``@``. Expectations follow the documentation of the form's origin:
what the model is shown, what of it is trained (in brackets), and the columns that have no meaning for it; or the
reason of a refusal.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow
from pyarrow.parquet import write_table

Kind = Literal["sft", "dpo", "rl"]


@dataclass(frozen=True)
class Form:
    """A form, and for each kind of training the text that is shown and trained, or a refusal."""

    origin: str
    row: Any
    """Row with ``@`` in place of its number, which JSON text and the lines of a file may hold."""
    sft: str = ""
    """Shown messages, with trained ones in brackets; ``refused: REASON``. Empty: not tried."""
    dpo: tuple[str, str] | str = ""
    rl: str = ""
    """Shown messages and, after ``=>``, the right answers."""
    unused: str = ""
    keys: tuple[str, ...] = ()
    """Settings of the data set."""
    file: str = "rows.jsonl"
    template: str = "chatml"

    def write(self, folder: Path) -> Path:
        """Write ten rows and return their file."""
        rows = [numbered(self.row, n) for n in range(10)]
        file = folder / self.file
        match file.suffix:
            case ".parquet":
                write_table(pyarrow.Table.from_pylist(rows), file)
            case ".csv":
                lines = [",".join(rows[0])]
                quoted = (
                    ['"' + str(cell).replace('"', '""') + '"' for cell in row.values()]
                    for row in rows
                )
                file.write_text("\n".join(lines + list(map(",".join, quoted))) + "\n")
            case ".json":
                file.write_text(json.dumps(rows, indent=1))
            case _ if self.file == "list.jsonl":
                file.write_text(json.dumps(rows, indent=1))
            case _:
                file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return file


def numbered(value: Any, number: int) -> Any:
    """Put a number in place of every ``@`` of a value."""
    return json.loads(json.dumps(value).replace("@", str(number)))


def user(text: str, **keys: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **keys}


def assistant(text: Any, **keys: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **keys}


def system(text: str, **keys: Any) -> dict[str, Any]:
    return {"role": "system", "content": text, **keys}


def human(text: str, **keys: Any) -> dict[str, Any]:
    return {"from": "human", "value": text, **keys}


def gpt(text: str, **keys: Any) -> dict[str, Any]:
    return {"from": "gpt", "value": text, **keys}


Q, A = user("Q@?"), assistant("A@.")
QA = "user: Q@? assistant: [A@.]"
RETRY = [user("Q@?"), assistant("wrong"), user("No."), assistant("A@.")]
RETRIED = "user: Q@? assistant: wrong user: No. assistant: [A@.]"


def flagged(key: str, no: Any, yes: Any) -> list[dict[str, Any]]:
    """A dialogue whose first reply is excluded from training by a key of its messages."""
    return [RETRY[0], {**RETRY[1], key: no}, RETRY[2], {**RETRY[3], key: yes}]


CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": None}}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {
    "a": {"type": "integer", "default": None}}}}}  # fmt: skip
CALLED = [user("Q@?"), {"role": "assistant", "content": None, "tool_calls": [CALL]},
          {"role": "tool", "content": "7"}, assistant("A@.")]  # fmt: skip
CHATS = (
    Form("OpenAI fine-tuning", {"messages": [system("S"), Q, A]}, "system: S user: Q@? assistant: [A@.]"),
    Form("OpenAI: developer messages", {"messages": [{"role": "developer", "content": "S"}, Q, A]},
         "system: S user: Q@? assistant: [A@.]"),
    Form("OpenAI: weight", {"messages": flagged("weight", 0, 1)}, RETRIED),
    Form("OpenAI: parallel_tool_calls", {"messages": [Q, A], "parallel_tool_calls": False}, QA,
         unused="parallel_tool_calls"),
    Form("OpenAI: parts of content, one of them null",
         {"messages": [user([{"type": "text", "text": "Q@?"}, {"type": "text", "text": None}]), A]}, QA),
    Form("OpenAI: images", {"messages": [user([{"type": "text", "text": "Q@?"},
         {"type": "image_url", "image_url": {"url": "x"}}]), A]}, "refused: message 1 has a part that is not text"),
    Form("OpenAI: audio of a reply", {"messages": [Q, assistant("A@.", audio={"id": "x"})]},
         "refused: message 2 has media in 'audio'"),
    Form("OpenAI: names of users", {"messages": [user("Q@?", name="Ann"), A]}, QA, unused="messages.name"),
    Form("OpenAI: tools, with nulls of the user's own", {"messages": CALLED, "tools": [TOOL]},
         'trained: <tool_call>\n{"name": "add", "arguments": {"a": 1, "b": null}}\n</tool_call>|A@.',
         template="qwen2_5"),
    Form("Hugging Face hub: the same in Parquet, which adds nulls", {"messages": CALLED, "tools": [TOOL]},
         'trained: <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>|A@.', template="qwen2_5",
         file="rows.parquet"),
    Form("Mistral: weight", {"messages": flagged("weight", 0, None)}, RETRIED),
    Form("Mistral: prefix", {"messages": [Q, assistant("A@.", prefix=True)]}, "refused: message 2 has prefix=True"),
    Form("Fireworks: fractions of messages", {"messages": flagged("weight", 0.5, 1)},
         "refused: message 2 has weight=0.5; a message is trained .1. or not .0."),
    Form("Fireworks: weights of rows", {"messages": [Q, A], "weight": 2.0}, "refused: it has weight=2.0; repeat rows"),
    Form("Fireworks: rows of weight 1", {"messages": [Q, A], "weight": 1.0}, QA),
    Form("Together AI", {"messages": [Q, A, user("R?"), assistant("B")]},
         "user: Q@? assistant: [A@.] user: R? assistant: [B]"),
    Form("axolotl: train", {"conversations": [human("Q@?", train=False), gpt("wrong", train=False),
         human("No."), gpt("A@.", train=True)]}, RETRIED),
    Form("axolotl: training", {"messages": flagged("training", False, True)}, RETRIED),
    Form("axolotl: trained users", {"conversations": [human("Q@?", train=True), gpt("A@.")]},
         "refused: message 1 .user. has train=True; only the assistant's"),
    Form("axolotl: train_detail", {"messages": [Q, assistant("A@.", train_detail=[
         {"begin_offset": 0, "end_offset": 1, "train": False}])]}, "refused: message 2 has train_detail"),
    Form("axolotl: segments", {"segments": [{"label": True, "text": "Q@?"}]},
         "refused: no known form: it has segments"),
    Form("axolotl: roles_to_train", {"messages": [Q, A], "roles_to_train": ["user", "assistant"]},
         "refused: it has roles_to_train"),
    Form("axolotl: train_on_inputs", {"instruction": "Q@?", "output": "A@.", "train_on_inputs": True},
         "refused: it has train_on_inputs=True"),
    Form("ms-swift: loss", {"messages": flagged("loss", False, True)}, RETRIED),
    Form("ms-swift: loss_scale", {"messages": flagged("loss_scale", 0.3, 1)}, "refused: message 2 has loss_scale=0.3"),
    Form("ms-swift: query and response", {"system": "S", "query": "Q@?", "response": "A@.",
         "history": [["P@", "R@"]]}, "system: S user: P@ assistant: [R@] user: Q@? assistant: [A@.]"),
    Form("ms-swift: ShareGPT", {"conversation": [{"human": "Q@?", "assistant": "A@."}]},
         "refused: message 1 has the role None"),
    Form("ms-swift: KTO", {"messages": [Q, A], "label": False}, "refused: it has label=False"),
    Form("ms-swift: images", {"messages": [user("<image>Q@?"), A], "images": ["x.png"]},
         "refused: it has media in 'images'"),
    Form("ms-swift: audio without its column", {"messages": [user("<audio>Q@?"), A]},
         "refused: message 1 has <audio>, a place of media"),
    Form("ms-swift: grounding", {"messages": [Q, A], "objects": {"ref": ["x"]}}, "refused: it has media in 'objects'"),
    Form("LLaVA", {"id": "@", "image": "x.jpg", "conversations": [human("<image>\nQ@?"), gpt("A@.")]},
         "refused: it has media in 'image'"),
    Form("chats about HTML", {"messages": [user("Why does <video> not play? <video>x</video>@"), A]},
         "user: Why does <video> not play? <video>x</video>@ assistant: [A@.]"),
    Form("ShareGPT", {"id": "@", "conversations": [{"from": "system", "value": ""}, human("Q@?"), gpt("A@.")]}, QA,
         unused="id"),
    Form("SlimOrca: weight", {"conversations": [{"from": "system", "value": "S", "weight": None},
         human("Q@?", weight=0.0), gpt("A@.", weight=1.0)]}, "system: S user: Q@? assistant: [A@.]"),
    Form("OpenHermes 2.5", {"system_prompt": None, "conversations": [human("Q@?", weight=None), gpt("A@.",
         weight=None)],
         "source": "x", "model": None}, QA, unused="source"),
    Form("LLaMA-Factory: Alpaca", {"instruction": "Q@?", "input": "I@", "output": "A@.", "system": "S",
         "history": [["P@", "R@"]]}, "system: S user: P@ assistant: [R@] user: Q@?\n\nI@ assistant: [A@.]"),
    Form("LLaMA-Factory: mask_history", {"instruction": "Q@?", "output": "A@.", "mask_history": True},
         "refused: it has mask_history=True; use targets=last"),
    Form("LLaMA-Factory: KTO", {"instruction": "Q@?", "output": "A@.", "kto_tag": False},
         "refused: it has kto_tag=False"),
    Form("LLaMA-Factory: tools of ShareGPT", {"conversations": [human("Q@?"), {"from": "function_call",
         "value": '{"name": "add", "arguments": {"a": 1}}'}, {"from": "observation", "value": "7"}, gpt("A@.")],
         "tools": json.dumps([TOOL["function"]])},
         'trained: <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>|A@.', template="qwen2_5"),
    Form("Stanford Alpaca", {"instruction": "Q@?", "input": "", "output": "A@.", "text": "Below ..."},
         QA, unused="text"),
    Form("Dolly", {"instruction": "Q@?", "context": "C@", "response": "A@.", "category": "qa"},
         "user: Q@?\n\nC@ assistant: [A@.]", unused="category"),
    Form("OpenOrca", {"id": "@", "system_prompt": "S", "question": "Q@?", "response": "A@."},
         "system: S user: Q@? assistant: [A@.]", unused="id"),
    Form("MetaMathQA", {"type": "x", "query": "Q@?", "original_question": "P@?", "response": "A@."}, QA,
         unused="type, original_question"),
    Form("NuminaMath", {"source": "x", "problem": "Q@?", "solution": "A@.", "messages": [Q, A]}, QA,
         unused="source, problem, solution"),
    Form("No Robots", {"prompt": "Q@?", "prompt_id": "@", "messages": [Q, A], "category": "x"}, QA,
         unused="prompt, prompt_id, category"),
    Form("WildChat", {"conversation_hash": "@", "model": "x", "conversation": [{**Q, "toxic": False},
         {**A, "toxic": False}],
         "turn": 1}, QA, unused="conversation_hash, model, conversation.toxic, turn"),
    Form("TRL: prompt and completion", {"prompt": "Q@?", "completion": "A@."}, QA),
    Form("TRL: conversational prompt and completion", {"prompt": [Q, assistant("B"), user("R?")], "completion": [A]},
         "user: Q@? assistant: B user: R? assistant: [A@.]"),
    Form("TRL: language modeling", {"text": "Q@? A@."}, "refused: no known form: it has text"),
    Form("TRL: chat_template_kwargs", {"messages": [Q, A], "chat_template_kwargs": {"enable_thinking": False}},
         "refused: it has chat_template_kwargs=.*; use engine.template_args"),
    Form("TRL: completion_mask", {"input_ids": [1, 2], "completion_mask": [0, 1]}, "refused: no known form"),
    Form("TRL: assistant_masks beside messages", {"messages": [Q, A], "assistant_masks": [0, 1]},
         "refused: it has assistant_masks"),
    Form("TRL: unpaired preferences", {"prompt": "Q@?", "completion": "A@.", "label": False},
         "refused: it has label=False; replies that are not to be imitated"),
    Form("TRL: unpaired preferences in CSV", {"prompt": "Q@?", "completion": "A@.", "label": "False"},
         "refused: it has label='False'", file="rows.csv"),
    Form("classes of texts", {"prompt": "Q@?", "completion": "A@.", "label": "science"}, QA, unused="label"),
    Form("prompts in a chat template", {"prompt": "<|im_start|>user\nQ@?<|im_end|>\n<|im_start|>assistant\n",
         "completion": "A@."}, "refused: its question has '<.im_start.>' of a chat template"),
    Form("Llama 2's prompts", {"text": "<s>[INST] Q@? [/INST]", "answer": "A@."},
         rl="refused: its question has '<s>.INST.' of a chat template"),
    Form("replies with the end of a turn", {"prompt": "Q@?", "completion": "A@.<|im_end|>"},
         "refused: message 1 has '<.im_end.>' of a chat template"),
    Form("replies with the end of a text", {"messages": [Q, assistant("A@.</s>")]},
         "refused: message 2 has '</s>' of a chat template"),
    Form("transcripts as prompts", {"prompt": "\n\nHuman: Q@?\n\nAssistant:", "response": " A@."},
         "refused: its question has 'Human:' of a chat template"),
    Form("texts about templates", {"messages": [user("What is <|im_end|>, and <s>@</s>?"),
         assistant("Human: is a role. <s>A@.</s> is struck.")]}, "user: What is < |im_end|>, and <s>@</s>? assistant: "
         "[Human: is a role. <s>A@.</s> is struck.]"),
    Form("a history beside a prompt in messages", {"prompt": [Q, assistant("B"), user("R?")], "completion": [A],
         "history": [["P", "R"]]}, "user: Q@? assistant: B user: R? assistant: [A@.]", unused="history"),
    Form("an instruction beside a question", {"instruction": "Q@?", "question": "R@?", "answer": "A@."}, QA,
         unused="question"),
    Form("verl: enable_thinking", {"messages": [Q, A], "enable_thinking": False},
         "refused: it has enable_thinking=False"),
    Form("verl: loss_mask", {"messages": flagged("loss_mask", 0, 1)}, RETRIED),
    Form("slime: step_loss_mask", {"messages": flagged("step_loss_mask", 0, 1)}, RETRIED),
    Form("tinker-cookbook: trainable", {"messages": [{**one, "trainable": one is RETRY[3]} for one in RETRY]}, RETRIED),
    Form("XTuner", {"conversation": [{"input": "Q@?", "output": "A@.", "output_with_loss": False}]},
         "refused: message 1 has the role None"),
    Form("NeMo: mask", {"mask": "User", "system": "S", "conversations": [{"from": "User", "value": "Q@?"},
         {"from": "Assistant", "value": "A@."}]}, "system: S user: Q@? assistant: [A@.]"),
    Form("NeMo: trained users", {"mask": "Assistant", "system": "", "conversations": [{"from": "User", "value": "Q@?"},
         {"from": "Assistant", "value": "A@."}]}, "refused: it has mask='Assistant'"),
    Form("messages as JSON text", {"messages": json.dumps([Q, A]), "tools": "[]"}, QA),
    Form("messages as JSON text in CSV", {"messages": json.dumps([Q, A])}, QA, file="rows.csv"),
    Form("messages as Python text", {"messages": str([Q, A])}, "refused: its list of messages is a text, but not JSON"),
    Form("a list of messages on each line", [Q, A], QA),
    Form("one JSON list in a .jsonl file", {"messages": [Q, A]}, QA, file="list.jsonl"),
    Form("an empty system message", {"messages": [system(" "), Q, A]}, QA),
    Form("a reply that no key lets train", {"messages": [Q, assistant("A@.", weight=0)]},
         "refused: none of its replies is trained"),
    Form("a column that is ignored", {"messages": [Q, assistant("A@.", weight=0.5)], "images": ["x"]}, QA,
         keys=("ignore=[images,weight]",)),
)  # fmt: skip

YES, NO = assistant("yes @"), assistant("no @")
SIDES = ("user: Q@? assistant: [yes @]", "user: Q@? assistant: [no @]")
PREFERENCES = (
    Form("TRL: preferences", {"prompt": "Q@?", "chosen": "yes @", "rejected": "no @"}, dpo=SIDES),
    Form("TRL: conversational preferences", {"prompt": [Q], "chosen": [YES], "rejected": [NO]}, dpo=SIDES),
    Form("TRL: implicit prompts", {"chosen": [Q, YES], "rejected": [Q, NO]}, dpo=SIDES),
    Form("hh-rlhf", {"chosen": "\n\nHuman: Q@?\n\nAssistant: yes @", "rejected": "\n\nHuman: Q@?\n\nAssistant: no @"},
         dpo=SIDES),
    Form("transcripts after a system prompt", {"chosen": "S\n\nHuman: Q@?\n\nAssistant: yes @",
         "rejected": "S\n\nHuman: Q@?\n\nAssistant: no @"},
         dpo=tuple(f"system: S {side}" for side in SIDES)),  # type: ignore[arg-type]
    Form("UltraFeedback, binarized", {"prompt": "Q@?", "prompt_id": "@", "chosen": [Q, YES], "rejected": [Q, NO],
         "messages": [Q, YES], "score_chosen": 8.0, "score_rejected": 3.0}, "user: Q@? assistant: [yes @]", dpo=SIDES,
         unused="prompt_id, messages, score_chosen, score_rejected"),
    Form("Orca DPO pairs", {"system": "", "question": "Q@?", "chosen": "yes @", "rejected": "no @"}, dpo=SIDES),
    Form("OpenAI and Together: preferences", {"input": {"messages": [Q], "tools": []}, "preferred_output": [YES],
         "non_preferred_output": [NO]}, dpo=SIDES),
    Form("axolotl: chatml.argilla", {"system": "S", "instruction": "Q@?", "chosen_response": "yes @",
         "rejected_response": "no @"}, dpo=tuple(f"system: S {side}" for side in SIDES)),  # type: ignore[arg-type]
    Form("axolotl: chat_template.default", {"messages": [Q], "chosen": YES, "rejected": NO}, dpo=SIDES),
    Form("LLaMA-Factory: preferences", {"conversations": [human("Q@?")], "chosen": gpt("yes @"),
         "rejected": gpt("no @")}, dpo=SIDES),
    Form("ms-swift: preferences", {"messages": [Q, YES], "rejected_response": "no @"}, dpo=SIDES),
    Form("replies that begin like their prompts", {"prompt": "Hello @", "chosen": "Hello @! How can I help?",
         "rejected": "Hello @."}, dpo=("user: Hello @ assistant: [Hello @! How can I help?]",
         "user: Hello @ assistant: [Hello @.]")),
    Form("prompts that both sides repeat", {"prompt": "Q@?\n", "chosen": "Q@?\nyes @", "rejected": "Q@?\nno @"},
         dpo=("user: Q@?\n assistant: [yes @]", "user: Q@?\n assistant: [no @]")),
    Form("sides that differ in a thought that the template drops", {"prompt": [Q],
         "chosen": [assistant("A@.", reasoning_content="x")], "rejected": [A]},
         dpo="refused: chosen and rejected are equal as the chat template shows them"),
    Form("equal sides", {"prompt": "Q@?", "chosen": "yes @", "rejected": "yes @ "}, dpo="refused: are equal"),
    Form("a side that is not trained", {"prompt": [Q], "chosen": [assistant("yes @", weight=0)], "rejected": [NO]},
         dpo="refused: none of its replies is trained"),
    Form("PKU-SafeRLHF", {"prompt": "Q@?", "response_0": "yes @", "response_1": "no @", "better_response_id": 0},
         dpo="refused: no known form"),
    Form("SHP", {"history": "Q@?", "human_ref_A": "yes @", "human_ref_B": "no @", "labels": 1},
         dpo="refused: no known form"),
    Form("Nectar", {"prompt": "Q@?", "answers": [{"answer": "yes @", "rank": 1}]}, dpo="refused: no known form"),
    Form("Step-DPO", {"prompt": "Q@?", "initial_reason_steps": "S", "chosen": "yes @", "rejected": "no @"},
         dpo="refused: it has initial_reason_steps='S'; append them to the prompt"),
    Form("images of preferences", {"prompt": "Q@?", "images": ["x"], "chosen": "yes @", "rejected": "no @"},
         dpo="refused: it has media in 'images'"),
)  # fmt: skip

OPTIONS = "Q@?\nOptions: a@ | b@ | c@"


def choice(
    row: dict[str, Any], origin: str, unused: str = "", right: str = "b@", **more: Any
) -> Form:
    """A question with the options a@, b@ and c@, of which b@ is right."""
    shown = more.pop("shown", OPTIONS)
    return Form(
        origin,
        row,
        f"user: {shown} assistant: [{right}]",
        rl=f"user: {shown} => {right}",
        unused=unused,
        **more,
    )


LIST = ["a@", "b@", "c@"]
TEXTS = {"text": LIST, "label": ["A", "B", "C"]}
QUESTIONS = (
    Form("Alpaca as questions", {"instruction": "Q@?", "input": "I@", "output": "A@."},
         "user: Q@?\n\nI@ assistant: [A@.]", rl="user: Q@?\n\nI@ => A@."),
    Form("GSM8K", {"question": "Q@?", "answer": "Add.\n#### 7"}, rl="user: Q@? => Add.\n#### 7"),
    Form("MATH", {"problem": "Q@?", "level": "Level 1", "type": "Algebra", "solution": "A@."}, QA,
         rl="user: Q@? => A@.", unused="level, type"),
    Form("OpenOrca as questions", {"system_prompt": "S", "question": "Q@?", "response": "A@."},
         "system: S user: Q@? assistant: [A@.]", rl="system: S user: Q@? => A@."),
    choice({"question": "Q@?", "subject": "x", "choices": LIST, "answer": 1}, "MMLU", "subject"),
    choice({"question": "Q@?", "choices": LIST, "answer": "B"}, "MMLU: letters"),
    choice({"question_id": "@", "question": "Q@?", "options": LIST, "answer": "B",
           "answer_index": 1, "cot_content": ""},
           "MMLU-Pro", "question_id, answer"),
    choice({"id": "@", "question": "Q@?", "choices": TEXTS, "answerKey": "B"}, "ARC", "id"),
    choice({"id": "@", "question": "Q@?", "choices": {"text": LIST, "label": ["1", "2", "3"]}, "answerKey": "2"},
           "ARC: numbers as labels", "id"),
    choice({"id": "@", "question": "Q@?", "question_concept": "x", "answerKey": "B",
            "choices": {"label": ["A", "B", "C"], "text": LIST}}, "CommonsenseQA", "id, question_concept"),
    choice({"id": "@", "question_stem": "Q@?", "choices": TEXTS, "answerKey": "B"}, "OpenBookQA", "id"),
    choice({"id": "@", "question": "Q@?", "opa": "a@", "opb": "b@", "opc": "c@", "cop": 1, "exp": "E"}, "MedMCQA",
           "id, exp"),
    choice({"question": "Q@?", "answer": "b@", "options": {"A": "a@", "B": "b@", "C": "c@"}, "answer_idx": "B"},
           "MedQA",
           "answer"),
    choice({"id": "@", "goal": "Q@?", "sol1": "a@", "sol2": "b@", "label": 1}, "PIQA", "id",
           shown="Q@?\nOptions: a@ | b@"),
    choice({"sentence": "Q@?", "option1": "a@", "option2": "b@", "answer": "2"}, "WinoGrande",
           shown="Q@?\nOptions: a@ | b@"),
    choice({"context": "C@", "question": "Q@?", "answerA": "a@", "answerB": "b@", "answerC": "c@", "label": "2"},
           "SIQA",
           shown=f"C@\n\n{OPTIONS}"),
    choice({"id": "@", "context": "C@", "question": "Q@?", "answer0": "a@", "answer1": "b@", "answer2": "c@",
           "label": 1},
           "CosmosQA", "id", shown=f"C@\n\n{OPTIONS}"),
    choice({"premise": "C@", "choice1": "a@", "choice2": "b@", "question": "Q@?", "label": 1}, "COPA",
           shown="C@\n\nQ@?\nOptions: a@ | b@"),
    choice({"ind": 1, "activity_label": "x", "ctx_a": "y", "ctx": "Q@?", "endings": LIST, "label": "1"}, "HellaSwag",
           "ind, activity_label, ctx_a"),
    choice({"video-id": "@", "startphrase": "Q@?", "ending0": "a@", "ending1": "b@", "ending2": "c@", "label": 1},
           "SWAG",
           "video-id"),
    choice({"example_id": "@", "article": "C@", "question": "Q@?", "options": LIST, "answer": "B"}, "RACE",
           "example_id",
           shown=f"C@\n\n{OPTIONS}"),
    choice({"context": "C@", "question": "Q@?", "answers": LIST, "label": 1, "id_string": "@"}, "ReClor", "id_string",
           shown=f"C@\n\n{OPTIONS}"),
    choice({"context": "C@", "question": "Q@?", "answers": LIST, "correct_answer_id": 1}, "QuAIL",
           shown=f"C@\n\n{OPTIONS}"),
    choice({"question": "Q@?", "answers": LIST, "label": "B"}, "answers with a letter"),
    choice({"question": "Q@?", "answers": LIST, "correct_answer": "b@"}, "answers with the right one"),
    choice({"dialogue": ["M: x", "W: y"], "question": "Q@?", "choice": LIST, "answer": "b@"}, "DREAM",
           shown=f"M: x\n\nW: y\n\n{OPTIONS}"),
    choice({"question": "Q@?", "options": ["A)a@", "B)b@", "C)c@"], "rationale": "x", "correct": "B"}, "AQuA",
           "rationale"),
    choice({"id": 1, "question": "Q@?", "A": "a@", "B": "b@", "C": "c@", "answer": "B", "explanation": "x"}, "C-Eval",
           "id, explanation"),
    choice({"passage": "C@", "question": "Q@?", "options": ["(A)a@", "(B)b@", "(C)c@"], "label": "B", "answer": None},
           "AGIEval", shown=f"C@\n\n{OPTIONS}"),
    choice({"question": "Q@?", "choices": LIST, "answer": "b@"}, "the right option as a text"),
    choice({"question": "Q@?", "choices": json.dumps(LIST), "answer": "B"}, "options as JSON text in CSV",
           file="rows.csv"),
    choice({"question": "Q@?", "choices": [4, 7, 9], "answer": 7}, "numbers as options",
           shown="Q@?\nOptions: 4 | 7 | 9", right="7"),
    Form("SciQ", {"question": "Q@?", "correct_answer": "b@", "distractor1": "a@", "distractor2": "c@", "support": "x"},
         "user: Q@?\nOptions: * assistant: [b@]", rl="user: Q@?\nOptions: * => b@", unused="support"),
    Form("GPQA", {"Question": "Q@?", "Correct Answer": "b@", "Incorrect Answer 1": "a@", "Incorrect Answer 2": "c@"},
         "user: Q@?\nOptions: * assistant: [b@]", rl="user: Q@?\nOptions: * => b@"),
    Form("an index out of range", {"question": "Q@?", "choices": LIST, "answer": 3},
         "refused: its answer 3 is none of the options", rl="refused: its answer 3 is none of the options"),
    Form("MathQA", {"Problem": "Q@?", "options": "a ) 38 , b ) 27", "correct": "a"}, "refused: its options is a text",
         rl="refused: its options is a text"),
    Form("SQuAD", {"id": "@", "title": "T", "context": "C@", "question": "Q@?", "answers": {"text": ["A@.", "B@"],
         "answer_start": [0, 0]}}, "refused: no known form", rl="user: C@\n\nQ@? => A@.|B@", unused="id, title"),
    Form("SVAMP and ASDiv", {"Body": "C@.", "Question": "Q@?", "Answer": 7.0}, rl="user: C@.\n\nQ@? => 7"),
    Form("ProofWriter", {"theory": "C@", "question": "Q@?", "answer": "A@."}, "user: C@\n\nQ@? assistant: [A@.]",
         rl="user: C@\n\nQ@? => A@."),
    Form("MuSiQue", {"question": "Q@?", "answer": "A@.", "answer_aliases": ["B@"]}, QA, unused="answer_aliases"),
    Form("MuSiQue as questions", {"question": "Q@?", "answer": "A@.", "answer_aliases": ["B@"]},
         rl="user: Q@? => A@.|B@"),
    Form("Skywork-OR1", {"prompt": [Q], "reward_model": {"ground_truth": '["7"]'}}, rl="user: Q@? => 7"),
    Form("answers as JSON text in CSV", {"question": "Q@?", "answers": '["A@.", "B@"]'}, rl="user: Q@? => A@.|B@",
         file="rows.csv"),
    Form("BoolQ", {"passage": "C@", "question": "Q@?", "answer": True}, "refused: its reply is a bool",
         rl="refused: answer"),
    Form("HotpotQA", {"question": "Q@?", "answer": "A@.", "context": {"title": ["T"], "sentences": [["x"]]}},
         "refused: its context is a dict, not a text; .*ignore=.context", rl="refused: its context is a dict"),
    Form("HotpotQA without its paragraphs", {"question": "Q@?", "answer": "A@.", "context": {"title": ["T"]}}, QA,
         rl="user: Q@? => A@.", keys=("ignore=[context]",)),
    Form("ScienceQA", {"image": {"bytes": "x"}, "question": "Q@?", "choices": LIST, "answer": 1},
         "refused: it has media in 'image'", rl="refused: it has media in 'image'"),
    Form("MMMU", {"question": "Q@? <image 1>", "options": LIST, "answer": "B"}, "refused: its question has <image 1>",
         rl="refused: its question has <image 1>"),
    Form("verl: GSM8K", {"data_source": "x", "prompt": [user("Q@? Use ####.")], "ability": "math",
         "reward_model": {"style": "rule", "ground_truth": "7"}, "extra_info": {"index": 1, "question": "Q@?",
         "answer": "Add. 7"}}, "user: Q@? Use ####. assistant: [Add. 7]", rl="user: Q@? Use ####. => 7",
         unused="data_source, ability"),
    Form("verl: a system message", {"prompt": [system("S"), Q], "reward_model": {"ground_truth": "7"}},
         "system: S user: Q@? assistant: [7]", rl="system: S user: Q@? => 7"),
    Form("ms-swift: history as a question", {"query": "Q@?", "response": "A@.", "history": [["P", "R"]]},
         "user: P assistant: [R] user: Q@? assistant: [A@.]", rl="refused: it has a history"),
    Form("chats as questions", {"messages": [Q, A]}, QA, rl="refused: has no 'question'"),
)  # fmt: skip
FORMS = (*CHATS, *PREFERENCES, *QUESTIONS)
Show = Callable[[Path], list[str]]
