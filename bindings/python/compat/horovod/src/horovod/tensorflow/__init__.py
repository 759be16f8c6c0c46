"""horovod.tensorflow, for as long as there is no hvd.tensorflow, which then takes this module's place."""

from horovod._alias import without

__getattr__ = without("TensorFlow", __name__)
