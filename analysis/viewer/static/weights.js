/** Which matrix is shown of a pair: S, A or S·A; A also as weights that sum to one over a side. */

export const LAYERS = { alignment: "A", similarity: "S", product: "S·A" };
export const LAYER_NAMES = { alignment: "alignment A", similarity: "similarity S", product: "product S·A" };
export const DIRECTIONS = {
  own: "as the system aligns",
  query_to_document: "query → document, columns sum to 1",
  document_to_query: "document → query, rows sum to 1",
};

/** The (M, N) rows of numbers that a person chose of /api/align's result. */
export function matrixOf(pair, paradigm, shown, direction) {
  if (shown !== "alignment") return pair[shown];
  if (direction === "own") return pair.alignment;
  return directed(pair, paradigm, direction);
}

/** As analysis/viewer/directed_alignment.py: attention as it is, or its columns divided by their sums; else softmax of S. */
function directed(pair, paradigm, direction) {
  const over = direction === "query_to_document" ? columnwise : (matrix, act) => matrix.map(act);
  if (paradigm === "generative") {
    return direction === "document_to_query" ? pair.alignment : over(pair.alignment, divided);
  }
  const lexical = paradigm === "lexical" ? pair.product : pair.similarity;
  return over(lexical, softmax);
}

function columnwise(matrix, act) {
  return transposed(transposed(matrix).map(act));
}

function transposed(matrix) {
  return matrix[0].map((_, column) => matrix.map((row) => row[column]));
}

function divided(values) {
  const sum = values.reduce((total, value) => total + value, 0);
  return values.map((value) => (sum ? value / sum : 0));
}

function softmax(values) {
  const high = Math.max(...values);
  return divided(values.map((value) => Math.exp(value - high)));
}
