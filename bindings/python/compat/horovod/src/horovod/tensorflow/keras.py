"""horovod.tensorflow.keras, for as long as there is no hvd.tensorflow.keras, which then takes this module's place."""

from horovod._alias import without

__getattr__ = without("Keras", __name__)
