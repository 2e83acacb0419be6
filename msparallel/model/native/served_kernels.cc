// What stands between the matrix products of a served layer, on a processor; called by MindSpore's Custom operator.
//
// In: float32 tensors, int32 indices. Out: float32 tensors, and the cache of keys and values, filled in place. MindSpore
// starts every operator anew, which costs more than what most of them do for one token, so a layer has one kernel for
// all of attention, one for a norm and one for a gate. `model/served_kernels.py` calls them.
//
// Every function has the form that Custom wants: pointers, dims and shapes of inputs and then outputs; 0 is success.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>
#ifdef __linux__
#include <sched.h>
#endif

namespace {

using Index = int64_t;

// Below so many multiplications a second thread costs more than it brings.
constexpr Index kWorthAThread = 1 << 16;
constexpr Index kTokensOfABlock = 12;
constexpr Index kPanel = 16;

Index elements(int dims, const int64_t *shape) {
  Index count = 1;
  for (int i = 0; i < dims; ++i) count *= shape[i];
  return count;
}

Index processors() {
#ifdef __linux__
  cpu_set_t mine;
  if (sched_getaffinity(0, sizeof mine, &mine) == 0) return CPU_COUNT(&mine);
#endif
  return std::max<Index>(1, std::thread::hardware_concurrency());
}

inline void pause_a_moment() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // `yield` takes no time at all on many of these
#endif
}

// Threads that share the parts of a kernel with the one that calls it. Kernels follow each other within microseconds,
// less than it takes to wake a thread, so an idle one looks for work for a while before it sleeps, and nobody waits for
// one that has not come.
class Pool {
 public:
  static Pool &get() {
    static Pool *const one = new Pool;  // never taken down: its threads end with the process
    return *one;
  }

  // Calls one(i) for i in 0 .. count - 1.
  template <typename One>
  void each(Index count, const One &one) {
    std::unique_lock<std::mutex> mine(busy_, std::try_to_lock);
    if (others_ == 0 || count < 2 || !mine) {
      for (Index i = 0; i < count; ++i) one(i);
      return;
    }
    // Nobody reads these now: all parts of the round before are done, and only who has a part reads them.
    call_ = [](const void *what, Index i) { (*static_cast<const One *>(what))(i); };
    what_ = &one;
    done_.store(0, std::memory_order_relaxed);
    left_.store(count, std::memory_order_release);
    ++round_;
    if (sleeping_ > 0) {
      std::lock_guard<std::mutex> lock(sleep_);
      for (Index i = std::min<Index>(sleeping_, count - 1); i > 0; --i) wake_.notify_one();
    }
    take();
    for (Index looks = 0; done_.load(std::memory_order_acquire) < count; ++looks) {
      looks < kLooks ? pause_a_moment() : std::this_thread::yield();
    }
  }

 private:
  static constexpr Index kLooks = 2000, kMostThreads = 32;

  Pool() {
    try {
      for (const Index most = std::min(processors(), kMostThreads) - 1; others_ < most; ++others_) {
        std::thread([this] { work(); }).detach();
      }
    } catch (const std::system_error &) {
      // A limit of threads is reached: those that are there do.
    }
  }

  // Parts are given out from the last to the first.
  void take() {
    for (Index i; (i = left_.fetch_sub(1, std::memory_order_acquire) - 1) >= 0;) {
      call_(what_, i);
      done_.fetch_add(1, std::memory_order_release);
    }
  }

  void work() {
    for (uint64_t seen = 0;;) {
      for (Index looks = 0; round_ == seen && looks < kLooks; ++looks) pause_a_moment();
      if (round_ == seen) {
        std::unique_lock<std::mutex> lock(sleep_);
        ++sleeping_;
        wake_.wait(lock, [&] { return round_ != seen; });
        --sleeping_;
      }
      seen = round_;
      take();
    }
  }

  Index others_ = 0;
  std::mutex busy_, sleep_;
  std::condition_variable wake_;
  std::atomic<uint64_t> round_{0};
  std::atomic<Index> sleeping_{0}, left_{0}, done_{0};
  void (*call_)(const void *, Index) = nullptr;
  const void *what_ = nullptr;
};

// Calls one(i) for i in 0 .. count - 1, on several threads where `work` is worth them.
template <typename One>
void each(Index count, Index work, const One &one) {
  if (work < kWorthAThread) {
    for (Index i = 0; i < count; ++i) one(i);
  } else {
    Pool::get().each(count, one);
  }
}

// e^x for x <= 0 to three units in the last place, in a form that compilers turn into vector instructions:
// 2^n * e^r with |r| <= ln 2 / 2, e^r by its Taylor polynomial of degree 6 (next term below 1.3e-7).
inline float exponential(float power) {
  const float x = std::max(power, -87.0f);
  const float n = std::floor(x * 1.44269504f + 0.5f);
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  const float p = 1 + r * (1 + r * (0.5f + r * (1 / 6.0f + r * (1 / 24.0f + r * (1 / 120.0f + r * (1 / 720.0f))))));
  const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return power < -87.0f ? 0.0f : p * scale;
}

using Vector = float __attribute__((vector_size(32)));
constexpr Index kLanes = sizeof(Vector) / sizeof(float);

inline Vector load(const float *from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

inline float total(Vector vector) {
  using Half = float __attribute__((vector_size(sizeof(Vector) / 2)));
  Half halves[2];
  std::memcpy(halves, &vector, sizeof vector);
  const Half sum = halves[0] + halves[1];
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

// a . b; in vectors by hand, since a compiler may not reorder a sum
float dot(const float *a, const float *b, Index n) {
  Vector sums = {};
  Index i = 0;
  for (; i + kLanes <= n; i += kLanes) sums += load(a + i) * load(b + i);
  float sum = total(sums);
  for (; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

float sum_of(const float *from, Index n) {
  Vector sums = {};
  Index i = 0;
  for (; i + kLanes <= n; i += kLanes) sums += load(from + i);
  float sum = total(sums);
  for (; i < n; ++i) sum += from[i];
  return sum;
}

// to = from / sqrt(mean(from^2) + eps) * weight
void normalise(const float *from, const float *weight, float eps, Index n, float *to) {
  const float factor = 1 / std::sqrt(dot(from, from, n) / n + eps);
  for (Index i = 0; i < n; ++i) to[i] = from[i] * factor * weight[i];
}

// One head: normed and turned where the model does that, times `factor`.
struct Turn {
  const float *cosine, *sine;  // [T, D], or none
  float eps;
  Index d;

  void operator()(const float *from, const float *weight, Index token, float factor, float *to) const {
    if (weight != nullptr) {
      normalise(from, weight, eps, d, to);
    } else if (to != from) {
      std::copy(from, from + d, to);
    }
    if (cosine != nullptr) {
      const float *c = cosine + token * d, *s = sine + token * d;
      const Index half = d / 2;
      for (Index i = 0; i < half; ++i) {
        const float low = to[i], high = to[i + half];
        to[i] = low * c[i] - high * s[i];
        to[i + half] = high * c[i + half] + low * s[i + half];
      }
    }
    for (Index i = 0; i < d; ++i) to[i] *= factor;
  }
};

// to[m, n] = a[m] . b[n], rows of d; M * N sums stay in registers.
template <Index M, Index N>
void dots(const float *a, const float *b, Index d, float *to, Index stride) {
  Vector sums[M][N] = {};
  Index i = 0;
  for (; i + kLanes <= d; i += kLanes) {
    for (Index n = 0; n < N; ++n) {
      const Vector right = load(b + n * d + i);
      for (Index m = 0; m < M; ++m) sums[m][n] += load(a + m * d + i) * right;
    }
  }
  for (Index m = 0; m < M; ++m) {
    for (Index n = 0; n < N; ++n) {
      float sum = total(sums[m][n]);
      for (Index rest = i; rest < d; ++rest) sum += a[m * d + rest] * b[n * d + rest];
      to[m * stride + n] = sum;
    }
  }
}

template <Index M, Index N>
void dots_of_rows(const float *a, const float *b, Index n, Index d, float *to, Index stride) {
  Index column = 0;
  for (; column + N <= n; column += N) dots<M, N>(a, b + column * d, d, to + column, stride);
  for (; column < n; ++column) dots<M, 1>(a, b + column * d, d, to + column, stride);
}

// to[m, n] = a[m] . b[n] for all m and n, rows of d
void scores(const float *a, Index m, const float *b, Index n, Index d, float *to) {
  Index row = 0;
  for (; row + 6 <= m; row += 6) dots_of_rows<6, 2>(a + row * d, b, n, d, to + row * n, n);
  for (; row + 2 <= m; row += 2) dots_of_rows<2, 4>(a + row * d, b, n, d, to + row * n, n);
  if (row < m) dots_of_rows<1, 4>(a + row * d, b, n, d, to + row * n, n);
}

// 16 columns of b, [k, 16], rows `stride` apart.
struct Panel {
  const float *b;
  Index stride, k;
};

// to[m, i] = sum over k of a[m, k] * panel[k, i] + bias[i], for M rows and the first `count` columns
template <Index M>
void panel_product(const float *a, Index a_stride, const Panel &panel, const float *bias, Index count, float *to,
                   Index to_stride) {
  Vector sums[M][kPanel / kLanes] = {};
  for (Index k = 0; k < panel.k; ++k) {
    const Vector low = load(panel.b + k * panel.stride), high = load(panel.b + k * panel.stride + kLanes);
    for (Index m = 0; m < M; ++m) {
      sums[m][0] += a[m * a_stride + k] * low;
      sums[m][1] += a[m * a_stride + k] * high;
    }
  }
  for (Index m = 0; m < M; ++m) {
    float sum[kPanel];
    std::memcpy(sum, sums[m], sizeof sum);
    for (Index i = 0; i < count; ++i) to[m * to_stride + i] = sum[i] + (bias == nullptr ? 0 : bias[i]);
  }
}

// The same for all rows: as many at once as there are registers for.
void panel_products(const float *a, Index rows, Index a_stride, const Panel &panel, const float *bias, Index count,
                    float *to, Index to_stride) {
  const auto some = [&](auto product, Index row) {
    product(a + row * a_stride, a_stride, panel, bias, count, to + row * to_stride, to_stride);
  };
  Index row = 0;
  for (; row + 6 <= rows; row += 6) some(panel_product<6>, row);
  for (; row + 4 <= rows; row += 4) some(panel_product<4>, row);
  for (; row + 2 <= rows; row += 2) some(panel_product<2>, row);
  if (row < rows) some(panel_product<1>, row);
}

// The first `seen` of n scores become weights that add up to 1, the others 0.
void softmax(float *scores, Index seen, Index n) {
  float most = n > 0 ? scores[0] : 0;
  for (Index j = 1; j < seen; ++j) most = std::max(most, scores[j]);
  for (Index j = 0; j < seen; ++j) scores[j] = exponential(scores[j] - most);
  const float factor = 1 / sum_of(scores, seen);
  for (Index j = 0; j < seen; ++j) scores[j] *= factor;
  std::fill(scores + seen, scores + n, 0.0f);
}

// to[m] = sum over j of weights[m, j] * values[j], rows of d
void weigh(const float *weights, Index m, const float *values, Index n, Index d, float *to) {
  Index first = 0;
  for (; first + kPanel <= d; first += kPanel) {
    panel_products(weights, m, n, {values + first, d, n}, nullptr, kPanel, to + first, d);
  }
  if (first == d) return;
  for (Index row = 0; row < m; ++row) {
    std::fill(to + row * d + first, to + (row + 1) * d, 0.0f);
    for (Index j = 0; j < n; ++j) {
      for (Index i = first; i < d; ++i) to[row * d + i] += weights[row * n + j] * values[j * d + i];
    }
  }
}

}  // namespace

// x [..., H], weight [H], eps [1] -> x / sqrt(mean(x^2) + eps) * weight
extern "C" int RmsNorm(int, void **params, int *dims, int64_t **shapes, const char **, void *, void *) {
  const auto *x = static_cast<const float *>(params[0]), *weight = static_cast<const float *>(params[1]);
  const float eps = *static_cast<const float *>(params[2]);
  auto *y = static_cast<float *>(params[3]);
  const Index width = shapes[0][dims[0] - 1], rows = elements(dims[0], shapes[0]) / width;
  each(rows, rows * width, [&](Index row) { normalise(x + row * width, weight, eps, width, y + row * width); });
  return 0;
}

// x [T, K], panels [ceil(N / 16), K, 16], bias [N], or of one element for none -> x @ weight.T + bias, [T, N].
// A panel is 16 rows of the weight [N, K], side by side, so that a product reads it from one end to the other.
extern "C" int Product(int, void **params, int *dims, int64_t **shapes, const char **, void *, void *) {
  const auto *x = static_cast<const float *>(params[0]), *panels = static_cast<const float *>(params[1]);
  const auto *bias = elements(dims[2], shapes[2]) > 1 ? static_cast<const float *>(params[2]) : nullptr;
  auto *y = static_cast<float *>(params[3]);
  const Index tokens = shapes[0][0], d = shapes[0][1], width = shapes[3][1];
  each(shapes[1][0], tokens * width * d, [&](Index block) {
    const Index first = block * kPanel, count = std::min(kPanel, width - first);
    panel_products(x, tokens, d, {panels + first * d, kPanel, d}, bias == nullptr ? nullptr : bias + first, count,
                   y + first, width);
  });
  return 0;
}

// x [T, 2 F] -> silu(x[:, :F]) * x[:, F:], [T, F]
extern "C" int SwiGlu(int, void **params, int *, int64_t **shapes, const char **, void *, void *) {
  const auto *x = static_cast<const float *>(params[0]);
  auto *y = static_cast<float *>(params[1]);
  const Index rows = shapes[0][0], width = shapes[0][1] / 2;
  each(rows, rows * width * 4, [&](Index row) {
    const float *gate = x + row * 2 * width, *up = gate + width;
    float *to = y + row * width;
    for (Index i = 0; i < width; ++i) {
      const float small = exponential(-std::fabs(gate[i]));
      const float sigmoid = (gate[i] < 0 ? small : 1.0f) / (1 + small);
      to[i] = gate[i] * sigmoid * up[i];
    }
  });
  return 0;
}

// Inputs: projected [T, (N + 2 KV) * D], the queries, keys and values of R requests of S new tokens, T = R * S;
// positions [R, S]; slots [R]; key and value cache [slots, KV, L, D]; cosine and sine [T, D], or of one element where
// the model turns nothing; norms [2, D], of queries and of keys, or of one element; eps [1].
// Output: [T, N * D]. A token that stands at L or behind only fills the batch up: it is not remembered, and gets zeros.
extern "C" int Attend(int, void **params, int *dims, int64_t **shapes, const char **, void *, void *) {
  const auto *projected = static_cast<const float *>(params[0]);
  const auto *positions = static_cast<const int32_t *>(params[1]), *slots = static_cast<const int32_t *>(params[2]);
  auto *key_cache = static_cast<float *>(params[3]), *value_cache = static_cast<float *>(params[4]);
  const auto optional = [&](int at) {
    return elements(dims[at], shapes[at]) > 1 ? static_cast<const float *>(params[at]) : nullptr;
  };
  const float *norms = optional(7);
  auto *out = static_cast<float *>(params[9]);

  const Index rows = shapes[1][0], fresh = shapes[1][1], tokens = rows * fresh;
  const Index kv = shapes[3][1], length = shapes[3][2], d = shapes[3][3];
  const Index width = shapes[0][1], heads = width / d - 2 * kv, group = heads / kv;
  const Turn turn{optional(5), optional(6), *static_cast<const float *>(params[8]), d};
  const float factor = 1 / std::sqrt(static_cast<float>(d));

  // Queries as [R, KV, S, G, D], so that those which share a key head stand together.
  std::vector<float> queries(tokens * heads * d);
  each(tokens, tokens * width * 4, [&](Index token) {
    const Index row = token / fresh, position = positions[token];
    if (position >= length) return;
    const float *from = projected + token * width;
    for (Index head = 0; head < kv; ++head) {
      float *query = queries.data() + (((row * kv + head) * fresh + token % fresh) * group) * d;
      for (Index i = 0; i < group; ++i) turn(from + (head * group + i) * d, norms, token, factor, query + i * d);
      const Index at = ((slots[row] * kv + head) * length + position) * d;
      turn(from + (heads + head) * d, norms == nullptr ? nullptr : norms + d, token, 1, key_cache + at);
      const float *value = from + (heads + kv + head) * d;
      std::copy(value, value + d, value_cache + at);
    }
  });

  Index furthest = 0;
  for (Index token = 0; token < tokens; ++token) {
    if (positions[token] < length) furthest = std::max<Index>(furthest, positions[token] + 1);
  }
  const Index blocks = (fresh + kTokensOfABlock - 1) / kTokensOfABlock;
  each(rows * kv * blocks, tokens * furthest * heads * d, [&](Index task) {
    const Index row = task / (kv * blocks), head = task / blocks % kv, first = task % blocks * kTokensOfABlock;
    const Index last = std::min(first + kTokensOfABlock, fresh);
    const int32_t *places = positions + row * fresh;
    Index seen = 0;
    for (Index token = first; token < last; ++token) {
      if (places[token] < length) seen = std::max<Index>(seen, places[token] + 1);
    }
    const Index cache = (slots[row] * kv + head) * length * d, m = (last - first) * group;
    static thread_local std::vector<float> weights, mixed;
    weights.resize(m * seen), mixed.resize(m * d);
    scores(queries.data() + ((row * kv + head) * fresh + first) * group * d, m, key_cache + cache, seen, d,
           weights.data());
    for (Index i = 0; i < m; ++i) {
      const Index position = places[first + i / group];
      softmax(weights.data() + i * seen, position < length ? position + 1 : 0, seen);
    }
    weigh(weights.data(), m, value_cache + cache, seen, d, mixed.data());
    for (Index i = 0; i < m; ++i) {
      float *to = out + (row * fresh + first + i / group) * heads * d + (head * group + i % group) * d;
      std::copy(mixed.data() + i * d, mixed.data() + (i + 1) * d, to);
    }
  });
  return 0;
}
