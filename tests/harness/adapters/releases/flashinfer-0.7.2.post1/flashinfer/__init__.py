raise RuntimeError("the package needs a GPU; its adapter imports single modules")
