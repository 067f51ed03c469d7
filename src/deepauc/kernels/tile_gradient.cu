// The gradient of a 3x3 convolution's weight by tiles (`tile.cuh`).
//
// Macros: OUTS output channels a block; TAPS a warp; JOINED: several warps share the pixels, their sums are added up.

// sums[block, o, tap, i] = sum over this block's pixels of dy[pixel, o] x[pixel under the tap, i].
// A block has OUTS output channels (blockIdx.y says which) and goes through EACH tiles. Its warps share the work by
// output channels, 16 a warp, and by taps, TAPS a warp; with fewer channels also by pixels, then added up in turn.
constexpr int BY_OUT = OUTS / 16, BY_TAP = 9 / TAPS, BY_PIXEL = WARPS / (BY_OUT * BY_TAP);
static_assert(BY_OUT * BY_TAP * BY_PIXEL == WARPS && PIXELS % (16 * BY_PIXEL) == 0, "warps share the work evenly");
constexpr int LOADED = BORDERED * ROW + PIXELS * C;
constexpr int SHIFT = CHUNKS == 2 ? 2 : CHUNKS == 4 ? 1 : 0;

// Of a chunk of dy, whose rows are not lengthened, as that memory is short here: chunks change places within rows, in
// another way in each, so that the same chunk of eight rows in a row lies in different banks.
__device__ __forceinline__ int place(int row, int chunk) {
  return (row * CHUNKS + (chunk ^ ((row >> SHIFT) & (CHUNKS - 1)))) * 8;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
tile_weight_gradient(const u16* x, const u16* dy, float* sums, int tiles) {
  SHARED_MEMORY(loaded);  // two tiles of x and dy in turn
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, member = lane % 4;
  const int part = warp % BY_PIXEL, of_tap = warp / BY_PIXEL % BY_TAP * TAPS, of_out = warp / (BY_PIXEL * BY_TAP) * 16;
  const int outs = blockIdx.y * OUTS;
  const int begin = blockIdx.x * EACH, end = min(begin + EACH, tiles);

  auto fetch = [&](int number, int buffer) {
    const Place at = locate(number);
    u16* tile = loaded + buffer * LOADED;
    copy_tile(tile, x, at);
    u16* gradients = tile + BORDERED * ROW;
    const u16* from = dy + at.first * C;
#pragma unroll
    for (int i = 0; i < (PIXELS * CHUNKS + THREADS - 1) / THREADS; i++) {
      const int c = i * THREADS + threadIdx.x, q = c / CHUNKS, chunk = c % CHUNKS;
      if (PIXELS * CHUNKS % THREADS && q >= PIXELS) break;
      copy_chunk(gradients + place(q, chunk), from + (q / TW * WIDTH + q % TW) * C + chunk * 8, true);
    }
    end_copies();
  };

  float total[TAPS][TILES][4];
#pragma unroll
  for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
    for (int j = 0; j < TILES; j++) total[tap][j][0] = total[tap][j][1] = total[tap][j][2] = total[tap][j][3] = 0;

  fetch(begin, 0);
#pragma unroll 1
  for (int number = begin; number < end; number++) {
    const int buffer = (number - begin) % 2;
    if (number + 1 < end) {
      fetch(number + 1, 1 - buffer);
      await_copies<1>();
    } else {
      await_copies<0>();
    }
    __syncthreads();
    const u16* tile = loaded + buffer * LOADED;
    const u16* gradients = tile + BORDERED * ROW;
#pragma unroll 1
    for (int step = 0; step < PIXELS / 16 / BY_PIXEL; step++) {
      // Both operands are read transposed: the product sums over pixels, and pixels are the rows in memory.
      const int m = step * BY_PIXEL + part;
      u32 a[4];
      load_four_transposed(a, gradients + place(m * 16 + lane % 8 + lane / 16 * 8, (outs + of_out) / 8 + lane / 8 % 2));
      const int q = m * 16 + lane % 16;
      const u16* under = tile + (q / TW * SIDE + q % TW + of_tap / 3 * SIDE + of_tap % 3) * ROW + lane / 16 * 8;
#pragma unroll
      for (int i = 0; i < TAPS; i++) {
#pragma unroll
        for (int j = 0; j < TILES; j += 2) {
          u32 b[4];
          load_four_transposed(b, under + (i / 3 * SIDE + i % 3) * ROW + j * 8);
          multiply(total[i][j], a, b[0], b[1]);
          multiply(total[i][j + 1], a, b[2], b[3]);
        }
      }
    }
    __syncthreads();
  }

#if JOINED
  float* joined = (float*)loaded;  // what the parts have so far; one after the other, for the same sums every time
#pragma unroll 1
  for (int turn = 0; turn < BY_PIXEL; turn++) {
    if (part == turn)
#pragma unroll
      for (int i = 0; i < TAPS; i++)
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
          for (int e = 0; e < 4; e++) {
            float* at = joined + ((((warp / BY_PIXEL) * TAPS + i) * TILES + j) * 4 + e) * 32 + lane;
            total[i][j][e] += turn ? *at : 0.0f;
            *at = total[i][j][e];
          }
    __syncthreads();
  }
  if (part != BY_PIXEL - 1) return;
#endif
  float* to = sums + (long)blockIdx.x * 9 * C * C;
#pragma unroll
  for (int i = 0; i < TAPS; i++)
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int o = outs + of_out + group + 8 * half;
        *(float2*)(to + ((long)o * 9 + of_tap + i) * C + j * 8 + 2 * member) = make_float2(total[i][j][2 * half], total[i][j][2 * half + 1]);
      }
}
