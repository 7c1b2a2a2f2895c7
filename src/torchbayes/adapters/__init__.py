"""Language models that answer multiple-choice questions: the logits of the answers alone, and questions as rows."""

from torchbayes.adapters.decoding import Answers, Continuations
from torchbayes.adapters.draws import load_draw
from torchbayes.adapters.generation import generate, score
from torchbayes.adapters.last_token import LastToken
from torchbayes.adapters.prompts import answer_tokens, encode
from torchbayes.adapters.questions import Question, multiple_choice, read_questions
from torchbayes.adapters.sharding import shard

__all__ = [
    "Answers",
    "Continuations",
    "LastToken",
    "Question",
    "answer_tokens",
    "encode",
    "generate",
    "load_draw",
    "multiple_choice",
    "read_questions",
    "score",
    "shard",
]
