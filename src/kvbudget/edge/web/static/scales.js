// The places of sliders that go over many orders: two to a doubling for lengths, three for counts.
export const LENGTHS = steps(256, 13, [1, 1.5]);
export const COUNTS = [1, 2, 3, 4, 5, ...steps(6, 8, [1, 4 / 3, 5 / 3])];

function steps(first, doublings, within) {
  const found = [];
  for (let doubling = 0; doubling < doublings; doubling += 1) for (const factor of within) found.push(Math.round(first * 2 ** doubling * factor));
  return found;
}

export function nearest(scale, value) {
  return scale.reduce((best, one, index) => Math.abs(one - value) < Math.abs(scale[best] - value) ? index : best, 0);
}
