"""A text inside the tokenizer's chat template, and where in it the text's own characters are."""

from __future__ import annotations

from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerBase

from qkprism.contrasts import Span
from qkprism.encoding import Chat
from qkprism.errors import QKPrismError

_STAND_IN = "qkprismtextgoeshere"


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is tokenized, and where in it the text's own characters `kept` begin."""

    string: str
    start: int
    kept: tuple[int, int]

    def characters(self, span: Span) -> tuple[int, int]:
        """The span in the prompt's characters, without what the template stripped."""
        first, end = self.kept
        start, stop = max(span.start, first), min(span.end, end)
        return start - first + self.start, stop - first + self.start


@dataclass(frozen=True)
class ChatTemplate:
    """The tokenizer's chat template around a user's message: what comes before it and after it."""

    tokenizer: PreTrainedTokenizerBase
    system: str | None
    answer_prefix: str
    before: str
    after: str

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, chat: Chat) -> ChatTemplate:
        """Render a stand-in for the text once, to know where texts begin."""
        if not tokenizer.chat_template:
            name = tokenizer.name_or_path or type(tokenizer).__name__
            raise QKPrismError(
                f"the tokenizer {name} has no chat template; leave `chat` out, or set tokenizer.chat_template."
            )
        bare = cls(tokenizer, chat.get("system"), chat.get("answer_prefix", ""), "", "")
        before, *after = bare.render(_STAND_IN).split(_STAND_IN)
        if len(after) != 1:
            raise QKPrismError(f"the chat template shows the user's text {len(after)} times; it must show it once.")
        return replace(bare, before=before, after=after[0])

    def render(self, text: str) -> str:
        """The whole prompt, up to where the answer goes on."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        messages = [*system, {"role": "user", "content": text}]
        try:
            prompt = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # templates are programs: they may raise anything
            reason = " ".join(str(error).split())
            raise QKPrismError(f"the chat template refuses the message: {reason}") from error
        return f"{prompt}{self.answer_prefix}"

    def prompt(self, text: str) -> Prompt:
        """The prompt of a text; a template may strip the text's ends but change nothing else."""
        rendered = self.render(text)
        for kept in (text, text.strip(), text.lstrip(), text.rstrip()):
            if rendered == f"{self.before}{kept}{self.after}":
                first = text.index(kept)
                return Prompt(rendered, len(self.before), (first, first + len(kept)))
        raise QKPrismError("the chat template changes the text beyond stripping its ends, so marks cannot be followed")
