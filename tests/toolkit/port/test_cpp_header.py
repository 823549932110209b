"""Reading a header's declarations."""

from __future__ import annotations

import pytest

from lmsbuild.port.cpp_header import declarations

HEADER = """\
#pragma once
#include <x.h>
// class Commented { virtual void no(); };
/* int neither; */
#define CHECK(x, ...) \\
  if (!(x)) { fail(); }
namespace c10 { namespace cuda {
class Forward;
struct TORCH_API alignas(64) Base {
  virtual ~Base() = default;
};
template <class T, int N = (1 > 0)>
class C10_API Derived final : public Base, private std::vector<T> {
 public:
  Derived(int a, int b = 2) : Base(), a_{a}, b_(b) {}
  Derived(const Derived&) = delete;
  virtual bool plain(const std::map<int, std::function<void(int)>>& m = {}) const noexcept {
    if (m.empty()) { return "}"[0] == '}'; }
    return false;
  }
  void* over(
      size_t n) override;
  T operator()(int x) const { return x; }
  bool operator==(const Derived& other) const;
  explicit operator bool() const { return true; }
  std::pair<int, int> range = {0, 1};
  std::function<void(int)> callback;
  static constexpr int kMore{4};
  int bits : 3;
  enum class Kind : uint8_t { A = 0, B };
  struct Inner { int deep; } inner;
  using Base::Base;
  friend class Forward;
 private:
  mutable std::atomic<int> count_ = 0;
  char text_[12];
};
using Alias = std::function<int(Derived<int>&)>;
using std::swap;
typedef int (*Old)(int);
extern std::atomic<Base*> allocator;
inline Base* get() { return allocator.load(); }
[[noreturn]] void stop(const char* why = ";{");
}} // namespace
extern "C" {
int plain_c(void);
}
"""


@pytest.fixture(scope="module")
def found() -> dict[str, tuple[str, ...]]:
    return dict(declarations(HEADER))


def test_every_name_and_no_other(found: dict[str, tuple[str, ...]]) -> None:
    members = """
        Derived plain over operator() operator== range callback kMore bits Kind Inner Inner::deep
        Base count_ text_
    """
    names = "CHECK Base Base::~Base Derived Alias swap Old allocator get stop plain_c"
    conversion = "Derived::operator bool"
    assert set(found) == {
        *names.split(),
        *(f"Derived::{name}" for name in members.split()),
        conversion,
    }


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("Base", ("struct TORCH_API alignas(64) Base",)),
        ("Derived::plain", (
            "virtual bool plain(const std::map<int, std::function<void(int)>>& m = {})"
            " const noexcept",
        )),
        ("Derived::over", ("void* over(size_t n) override",)),
        ("Derived::Derived", ("Derived(const Derived&) = delete", "Derived(int a, int b = 2)")),
        ("Derived::Kind", ("enum class Kind : uint8_t { A = 0, B }",)),
        ("Derived::callback", ("std::function<void(int)> callback",)),
        ("get", ("inline Base* get()",)),
        ("Alias", ("using Alias = std::function<int(Derived<int>&)>",)),
        ("CHECK", ("#define CHECK(x, ...) if (!(x)) { fail(); }",)),
        ("stop", ('[[noreturn]] void stop(const char* why = ";{")',)),
    ],
)  # fmt: skip
def test_texts_are_without_bodies(
    found: dict[str, tuple[str, ...]], name: str, texts: tuple[str, ...]
) -> None:
    assert found[name] == texts


def test_how_it_is_laid_out_does_not_matter() -> None:
    other = declarations(HEADER.replace("\n      size_t n", "size_t   n").replace("// n", "// m"))
    assert other == declarations(HEADER)


def test_a_name_that_is_only_taken_over_counts_once() -> None:
    assert declarations("int f(); namespace x { using y::f; }")["f"] == ("int f()",)
    assert declarations("namespace x { using y::f; }")["f"] == ("using y::f",)


def test_a_header_that_is_cut_short_is_no_endless_loop() -> None:
    for end in range(0, len(HEADER), 7):
        declarations(HEADER[:end])


def test_a_macro_in_front_of_a_namespace() -> None:
    text = 'PUSH_IGNORED("-Wx")\nPUSH()\nnamespace c10 { enum class E : int8_t { A }; }\nPOP()'
    assert declarations(text)["E"] == ("enum class E : int8_t { A }",)
