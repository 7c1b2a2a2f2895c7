"""Data that users bring along: arrays, tables, folders of images, archives and Hugging Face data sets on the disk.

The rules are stated here and nowhere else; the `notes` of each data set say how they applied.

- Targets that are bools or texts are classes; numbers with a fraction are a regression. Whole numbers are classes: in
  arrays always; in tables, where a price is also a whole number, if there are at most 20 different ones.
- Where no test rows are given, a tenth of the rows is held out, drawn at random and stratified by class; each split is
  another draw.
- Statistics are of the training rows alone. Numbers are standardised. A missing number becomes the median of its
  column, and a further column marks it; a text becomes a column of zeros and ones for each value.
- Unsigned bytes of shape (rows, channels, height, width) are images, and are standardised by channel. So are those of
  shape (rows, height, width, channels), where there are 1 or 3 channels and the second axis has another length; and of
  shape (rows, height, width), where both are 8 or more. New rows may lie in any of these ways. Bytes and floating
  point are not mixed between fitted and new rows, because the value of white cannot be guessed.
- Whole numbers in inputs are standardised as all numbers are. Token ids are given in a `Data`.
- Parts of a data set are known by their names: train or training, test or testing, and val, valid, validation or dev,
  whose rows are the test rows where there are no others. A folder that itself holds images is a class.
"""

from torchbayes.data.user.arrays import as_data
from torchbayes.data.user.files import is_file_name, read_data, read_new
from torchbayes.data.user.rows import New, repeated

__all__ = ["New", "as_data", "is_file_name", "read_data", "read_new", "repeated"]
