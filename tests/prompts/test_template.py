"""Chat templates: where they are found, what they put around a text, and which are refused."""

import json
from pathlib import Path

import pytest
import transformers

from flide_jax.prompts.template import ChatTemplate, Frame
from tests.prompts.variants import DEMO, DEMO_TEMPLATE, LARGE_TEMPLATE, checkpoint

GENERATION = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
THINKING_OFF = Frame("<|im_start|>user\n", "<|im_end|>\n" + GENERATION, trims=True)


@pytest.mark.parametrize("template", [DEMO_TEMPLATE, LARGE_TEMPLATE], ids=["demo", "large"])
def test_frame(template: str) -> None:
    assert ChatTemplate(template, {}).frame == THINKING_OFF


def test_the_demo_template_as_transformers_applies_it() -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO)
    turns = [{"role": role, "content": f" {role}\n"} for role in ("system", "user", "assistant", "user")]
    rendered = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    turn = "<|im_start|>{0}\n{0}<|im_end|>\n".format
    assert rendered == "".join(map(turn, ("system", "user", "assistant", "user"))) + GENERATION
    thinking = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert thinking.endswith("<|im_start|>assistant\n<think>\n")
    assert tokenizer.apply_chat_template(turns, tokenize=False).endswith("user<|im_end|>\n")
    with pytest.raises(Exception, match="not from tool"):
        tokenizer.apply_chat_template([{"role": "tool", "content": "x"}], tokenize=False)


def test_places_of_a_template(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no chat template"):
        ChatTemplate.load(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "[config]{{ messages[0].content }}"}))
    assert ChatTemplate.load(tmp_path).frame.head == "[config]"
    named = [{"name": "other", "template": "{{ 1 / 0 }}"}]
    named.append({"name": "default", "template": "[n]{{ messages[0].content }}"})
    config.write_text(json.dumps({"chat_template": named}))
    assert ChatTemplate.load(tmp_path).frame.head == "[n]"
    config.write_text(json.dumps({"chat_template": named[:1]}))
    with pytest.raises(ValueError, match="has no chat template"):
        ChatTemplate.load(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("[file]{{ messages[0].content }}")
    assert ChatTemplate.load(tmp_path).frame.head == "[file]"
    for damaged in ("{", "[]"):
        config.write_text(damaged)
        with pytest.raises(ValueError, match="damaged"):
            ChatTemplate.load(tmp_path)
    config.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ValueError, match="damaged"):
        ChatTemplate.load(tmp_path)


def test_special_tokens_reach_the_template(tmp_path: Path) -> None:
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "unk_token": None, "add_bos_token": True}
    source = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ unk_token }}"
    frame = ChatTemplate.load(checkpoint(tmp_path, template=source, config=config)).frame
    assert frame == Frame("<s>", "</s>", trims=False)
    assert frame.render(" x ") == "<s> x </s>"


USER = "<|im_start|>user\n{{ messages[0].content | trim }}<|im_end|>\n"
REPLY = "{% if messages | length > 1 %}{{ '<|im_start|>assistant\n' ~ before ~ messages[1].content }}{% endif %}"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("<|im_start|>user\n<|im_end|>", "does not repeat the user's text once"),
        ("{{ messages[0].content }} {{ messages[0].content }}", "does not repeat the user's text once"),
        ("{{ messages[0].content | upper }}", "does not repeat the user's text once"),
        ("{% for part in messages[0].content %}{{ part.text }}{% endfor %}", "does not repeat the user's text once"),
        ("{{ messages[0].content | e }}", "rewrites the user's text"),
        ("{{ messages[0].content.split('</think>')[-1] }}", "rewrites the user's text"),
        ("{{ messages[0].content.lstrip() }}", "rewrites the user's text"),
        ("{{ messages[0].content | replace('<|im_end|>', '') }}", "rewrites the user's text"),
        (USER + "<|im_start|>assistant\n<think>\n", "opens <think> even with thinking off"),
        (USER + "<|im_start|>assistant\n<think></think>[THINK]", r"opens \[THINK\] even with thinking off"),
        (
            USER
            + REPLY.replace("before", "'<think>\n\n</think>\n\n'")
            + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
            r"begins every reply with '<think>\\n\\n</think>', even with thinking off",
        ),
    ],
)
def test_templates_that_cannot_be_used(source: str, message: str) -> None:
    with pytest.raises(NotImplementedError, match=message) as caught:
        ChatTemplate(source, {})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("before", "block"),
    [("", ""), ("", "<think>\n\n</think>\n\n"), ("(earlier, shown in a way of its own) ", "<think>\n\n</think>\n\n")],
)
def test_templates_whose_replies_have_no_block_are_used(before: str, block: str) -> None:
    replies = REPLY.replace("before", repr(before))
    source = USER + replies + "{% if add_generation_prompt %}<|im_start|>assistant\n" + block + "{% endif %}"
    assert ChatTemplate(source, {}).frame.tail == "<|im_end|>\n<|im_start|>assistant\n" + block


@pytest.mark.parametrize(
    "source",
    ["{% if %}", "{{ raise_exception('Text only\nin parts') }}", "{{ messages[0].content.nothing() }}", "{{ 1 / 0 }}"],
)
def test_templates_that_cannot_be_rendered(tmp_path: Path, source: str) -> None:
    with pytest.raises(ValueError, match="cannot be rendered") as caught:
        ChatTemplate.load(checkpoint(tmp_path, template=source))
    assert str(caught.value).startswith(f"{tmp_path}: ") and "\n" not in str(caught.value)


def test_a_text_of_its_own_treatment_is_found() -> None:
    template = ChatTemplate("{{ 'censored' if 'secret' in messages[0].content else messages[0].content }}", {})
    template.check("a text\nlike others")
    with pytest.raises(NotImplementedError, match="rewrites the text of this request"):
        template.check("a secret")
