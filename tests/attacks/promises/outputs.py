"""Outputs: whatever is no right answer is a finding, and none is taken for right."""

from tests.attacks.attack import FAIL, PASS, Attack


def _value(name: str, value: str, before: str = "") -> Attack:
    return Attack(name, FAIL, "", f"return {value}", before)


def _raised(name: str, value: str, before: str = "") -> Attack:
    return Attack(f"raises_{name}", FAIL, "", f"if hit: raise {value}", before)


TENSORS = (
    _value("complex", "r.to(torch.complex64)"),
    _value("floats", "r.double()"),
    _value("nan", "torch.full((len(r),), float('nan'))"),
    _value("bools", "r.bool()"),
    _value("zero_dim", "torch.tensor(7)"),
    _value("expanded", "r[:1].expand(1 << 40)"),
    _value("expanded_floats", "torch.ones(1).expand(1 << 28)"),
    _value("nested_tensor", "torch.nested.nested_tensor([r, r])"),
    _value("csr", "r.view(1, -1).float().to_sparse_csr()"),
    _value("two_dims", "r.view(1, -1)"),
    _value("negative", "-1 - r"),
    _value("requires_grad", "r.double().requires_grad_()"),
    _value("array", "r.numpy()[::-1]"),
    _value("objects", "np.array([r, None], dtype=object)"),
    _value("masked", "np.ma.masked_array(r.numpy(), mask=True)"),
    _value("structured", "np.zeros(3, dtype=[('a', 'i8'), ('b', 'O')])"),
    _value("records", "np.rec.array([(1, 'x')])"),
    _value("datetimes", "np.array(['2020-01-01'], dtype='M8[D]')"),
    _value(
        "evil_function",
        "r.as_subclass(Evil)",
        """
        class Evil(torch.Tensor):
            @classmethod
            def __torch_function__(cls, *a, **k): raise RuntimeError("no")
        """,
    ),
    _value(
        "freed",
        "view",
        "pass",
    )._replace(body="view = (r + 1)[:]\nreturn view"),
    _value("aliases_the_input", "next(x for x in (*a, *k.values()) if torch.is_tensor(x))"),
    Attack("right_with_storage", PASS, "", "keep.append(r)", "keep = []"),
)
VALUES = (
    _value("none", "None"),
    _value("self_list", "loop", "loop = []; loop.append(loop)"),
    _value("deep_list", "deep", "deep = []\nfor _ in range(1000): deep = [deep]"),
    _value("large_int", "1 << 10**6"),
    _value("list_of_large", "[1 << 64] * 5"),
    _value("dict_subclass", "type('D', (dict,), {})(a=1)"),
    _value("a_generator", "(x for x in r)"),
    _value("ellipsis", "..."),
    _value("surrogates", "'\\ud800' * 9"),
    _value("long_text", "'x' * (32 << 20)"),
    _value("bytes", "b'\\xff' * 99"),
    _value("a_class", "torch.Tensor"),
    _value("module", "sys"),
    _value(
        "coroutine",
        "later()",
        "import warnings; warnings.simplefilter('ignore')\nasync def later(): return 1",
    ),
    _value(
        "evil_object",
        "Evil()",
        """
        class Evil:
            def _no(self, *a): raise RuntimeError("no")
            __eq__ = __repr__ = __len__ = __iter__ = __bool__ = __str__ = __format__ = _no
            __hash__ = __getattr__ = __del__ = __reduce__ = _no
            @property
            def __class__(self): raise SystemExit
        """,
    ),
    _value(
        "claims_to_be_a_tensor",
        "Evil()",
        "class Evil:\n    __class__ = torch.Tensor\n    def __eq__(self, other): return True",
    ),
    _value(
        "equals_all",
        "Evil()",
        """
        class Evil:
            def __eq__(self, other): return True
            def __len__(self): return 10**9
            def __getattr__(self, name): return self
            def __call__(self, *a, **k): return self
        """,
    ),
    _value(
        "hangs_in_repr",
        "Evil() if hit else r",
        "class Evil:\n    def __repr__(self): time.sleep(99)",
    ),
    _value(
        "evil_metaclass",
        "Evil()",
        """
        class Meta(type):
            def __getattribute__(cls, name): raise SystemExit(0)
        class Evil(metaclass=Meta): pass
        """,
    ),
    _value(
        "list_subclass",
        "L([1, 2])",
        "class L(list):\n    def __iter__(self): raise KeyboardInterrupt",
    ),
    _value("int_subclass", "[I(3)]", "class I(int):\n    def __index__(self): os._exit(0)"),
)
ERRORS = (
    _raised(
        "evil_runtime_error",
        "E",
        "class E(RuntimeError):\n    def __str__(self): raise ValueError",
    ),
    _raised("without_text", "Exception()"),
    _raised("keyboard_interrupt", "KeyboardInterrupt"),
    _raised("generator_exit", "GeneratorExit"),
    _raised("stop_iteration", "StopIteration(r)"),
    _raised("base_exception", "BaseException('x')"),
    _raised("group", "ExceptionGroup('g', [ValueError(), ExceptionGroup('h', [TypeError()])])"),
    _raised("base_group", "BaseExceptionGroup('g', [KeyboardInterrupt()])"),
    _raised("surrogates", "ValueError('\\ud800\\x1b[31m\\n::error::x')"),
    _raised("long_text", "ValueError('x' * (8 << 20))"),
    _raised(
        "evil_str",
        "E",
        "class E(Exception):\n    def __str__(self): raise SystemExit\n    __repr__ = __str__",
    ),
    _raised("str_is_no_text", "E", "class E(Exception):\n    def __str__(self): return 3"),
    _raised(
        "evil_class",
        "E()",
        "class E(Exception):\n    @property\n    def __class__(self): raise KeyboardInterrupt",
    ),
    _raised("evil_cause", "e", "e = ValueError('x'); e.__cause__ = e"),
    _raised(
        "evil_new",
        "E",
        """
        class E(Exception):
            def __new__(cls, *a): return Exception.__new__(cls)
            def __init__(self, *a): self.args = (self,)
        """,
    ),
    _raised(
        "deep_cause",
        "deep()",
        """
        def deep():
            e = ValueError()
            for _ in range(5000):
                f = ValueError(); f.__cause__ = e; e = f
            return e
        """,
    ),
    _raised(
        "evil_traceback",
        "E",
        "class E(Exception):\n    def __getattribute__(self, name): raise ZeroDivisionError",
    ),
    _raised("unicode_error", "UnicodeDecodeError('utf-8', b'x', 0, 1, 'y')"),
    _raised("os_error", "OSError(2, 'no', 'file')"),
    _raised(
        "metadata_error", "reference.MetadataError('x', 'y')", "from attnproof import reference"
    ),
    _raised("no_exception", "42"),
    _raised(
        "in_the_name",
        "E('x')",
        "E = type('E\\n::error::\\x1b[31m', (Exception,), {'__module__': None})",
    ),
)
