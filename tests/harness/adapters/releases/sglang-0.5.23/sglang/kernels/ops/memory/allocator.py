"""Stand-in: kernels are objects that are launched, and write the slots 0, 1, 2."""


class Kernel:
    def __init__(self, place):
        self.place = place

    def __getitem__(self, grid):
        def launch(*args, **options):
            out = args[self.place]
            assert out.is_contiguous()
            out.copy_(out.new_ones(len(out)).cumsum(0) - 1)
            return grid

        return launch


alloc_extend_kernel = Kernel(4)
alloc_decode_kernel = Kernel(3)
