"""An agent of LangGraph: a graph of a model and its tools.
pip install langgraph langchain-openai
coterie run rl/grpo environment=program environment.agent=examples/programs/langgraph_agent.py:run \
    dataset=problems.jsonl environment.reward=math model=Qwen/Qwen3-0.6B"""

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

SYSTEM = "Solve the problem with the tools. Then write only the number."


@tool
def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


def graph_of(model):
    tools = [add, multiply]
    model = model.bind_tools(tools)

    async def agent(state: MessagesState):
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("agent", agent)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", tools_condition)
    graph.add_edge("tools", "agent")
    return graph.compile()


async def run(task, session):
    model = ChatOpenAI(model=session.models[0], base_url=session.base_url, api_key=session.api_key)
    messages = [("system", SYSTEM), ("user", task["question"])]
    state = await graph_of(model).ainvoke({"messages": messages}, {"recursion_limit": 12})
    return state["messages"][-1].content
