"""Writes M3ToolEval's tasks, from a copy of its code (which it runs), as files: tasks and functions of each family.
python examples/m3tooleval.py code-act/scripts/eval/m3tooleval FOLDER"""

import ast
import json
import sys
from pathlib import Path
from types import ModuleType

code, folder = sys.argv[1], Path(sys.argv[2])
sys.path.insert(0, code)
sys.modules["tasks.repl"] = ModuleType("tasks.repl")  # the original's needs IPython
vars(sys.modules["tasks.repl"])["PythonREPL"] = None
import tasks.impl  # noqa: E402


def program(module, tools):
    """Yield what stands before the tasks, with the data of files, and all tools with their descriptions."""
    missing = dict(tools)
    yield "import builtins"
    for node in ast.parse(Path(module.__file__).read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CUR_TASK_NAME":
            break
        if isinstance(node, ast.FunctionDef) and node.name in missing:
            description = missing.pop(node.name).description
            node.body.insert(0, ast.Expr(ast.Constant(description)))
        if not isinstance(node, ast.With) and not getattr(node, "level", 0):
            yield ast.unparse(node)
    if pages := [(page.name, page.content) for page in getattr(module, "PAGES", ())]:
        yield f"browser = WebBrowser([WebPage(*page) for page in {pages!r}], '/')"
    for name, tool in missing.items():
        call = f"{'browser' if pages else 'builtins'}.{name}({'' if name == 'sum' else '*'}values)"
        yield f"def {name}(*values):\n    {tool.description!r}\n    return {call}"


for module in [one for one in vars(tasks.impl).values() if hasattr(one, "CUR_TASK_NAME")]:
    (own := folder / module.CUR_TASK_NAME).mkdir(parents=True)
    rows = [(t.name, t.instruction, t.expected_output) for t in module.TASKS]
    texts = [(i, q, str(tuple(a) if isinstance(a, list) else a)) for i, q, a in rows]
    lines = [json.dumps({"id": i, "question": q, "answer": a}) for i, q, a in texts]
    (own / "tasks.jsonl").write_text("\n".join(lines) + "\n")
    (own / "functions.py").write_text("\n\n".join(program(module, module.TASKS[0].tools)) + "\n")
