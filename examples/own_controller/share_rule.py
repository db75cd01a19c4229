from scaffolding_ext.controllers.chain.stopping.base import StoppingRule


class ShareOfProbes(StoppingRule):
    """Stops when a share of all probes gave the newest answer."""

    def __init__(self, share=0.6, min_probes=4):
        self.share, self.min_probes = share, min_probes

    def __call__(self, probes):
        newest = probes[-1]
        if newest.answer is None or len(probes) < self.min_probes:
            return False
        return sum(probe.answer_class == newest.answer_class for probe in probes) >= self.share * len(probes)
