"""Language models that answer multiple-choice questions: the logits of the answers alone, and questions as rows."""

from torchbayes.adapters.draws import load_draw
from torchbayes.adapters.last_token import LastToken
from torchbayes.adapters.prompts import answer_tokens, encode
from torchbayes.adapters.questions import Question, multiple_choice, read_questions
from torchbayes.adapters.sharding import shard

__all__ = [
    "LastToken",
    "Question",
    "answer_tokens",
    "encode",
    "load_draw",
    "multiple_choice",
    "read_questions",
    "shard",
]
